// A check by a program of the operator's: exit status 0 is a success. It is run without a shell, in
// a process group of its own, which is killed as a whole when the program ends or its time is up;
// it has no input, no output, and an environment that names the backend.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern "C" {  // which the header of glibc 2.36 forgets
#include <sys/pidfd.h>
}

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "control/check.h"

namespace maglev {
namespace {

using boost::system::error_code;

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What the child starts with: nothing of ours but its place in the file system.
class SpawnRules {
 public:
  SpawnRules() {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_addopen(&files_, 0, "/dev/null", O_RDWR, 0);
    posix_spawn_file_actions_adddup2(&files_, 0, 1);
    posix_spawn_file_actions_adddup2(&files_, 0, 2);
    posix_spawn_file_actions_addclosefrom_np(&files_, 3);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t signals;
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes_, &signals);
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes_, &signals);
  }
  ~SpawnRules() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&files_);
  }
  SpawnRules(const SpawnRules&) = delete;
  SpawnRules& operator=(const SpawnRules&) = delete;

  // 0 or an errno.
  int spawn(pid_t& pid, std::vector<std::string> argv, std::vector<std::string> environment) const {
    return ::posix_spawn(&pid, argv.front().c_str(), &files_, &attributes_,
                         pointers_to(argv).data(), pointers_to(environment).data());
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

CheckResult judge_exit(int status) {
  if (WIFSIGNALED(status)) {
    return failed(
        fmt::format("killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status))));
  }
  const int code = WEXITSTATUS(status);
  return code == 0 ? passed("exit status 0") : failed(fmt::format("exit status {}", code));
}

class CommandCheck : public Check, public std::enable_shared_from_this<CommandCheck> {
 public:
  CommandCheck(boost::asio::io_context& io, const HealthTarget& target)
      : argv_(target.settings.argv),
        environment_{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                     "MAGLEV_POOL=" + target.pool, "MAGLEV_BACKEND=" + target.backend,
                     "MAGLEV_ADDRESS=" + target.address.to_string(),
                     fmt::format("MAGLEV_PORT={}", target.settings.port)},
        process_(io) {}

  ~CommandCheck() override { abort(); }

  void start(Done done) override {
    auto finish = [self = shared_from_this(), done = std::move(done)](CheckResult result) {
      done(std::move(result));
    };
    if (const int error = spawn(); error != 0) {
      const error_code code(error, boost::system::system_category());
      boost::asio::post(process_.get_executor(), [finish = std::move(finish), code, this] {
        finish(failed_by(code, "cannot run " + argv_.front()));
      });
      return;
    }
    process_.async_wait(
        boost::asio::posix::descriptor_base::wait_read,
        [this, finish = std::move(finish)](const error_code&) { finish(judge_exit(reap())); });
  }

  // Until it is reaped its number, and so its group's, is nobody else's.
  void abort() override {
    if (pid_ > 0) ::kill(-pid_, SIGKILL);
  }

 private:
  int spawn() {
    static const SpawnRules rules;
    pid_t pid = 0;
    if (const int error = rules.spawn(pid, argv_, environment_); error != 0) return error;
    const int descriptor = ::pidfd_open(pid, 0);
    if (descriptor < 0) {
      const int error = errno;
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      return error;
    }
    pid_ = pid;
    process_.assign(descriptor);
    return 0;
  }

  int reap() {
    abort();  // what the program left running
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    error_code ignored;
    process_.close(ignored);
    return status;
  }

  const std::vector<std::string> argv_;
  const std::vector<std::string> environment_;
  boost::asio::posix::stream_descriptor process_;  // a pidfd
  pid_t pid_ = 0;
};

}  // namespace

CheckPtr make_command_check(boost::asio::io_context& io, const HealthTarget& target) {
  return std::make_shared<CommandCheck>(io, target);
}

}  // namespace maglev
