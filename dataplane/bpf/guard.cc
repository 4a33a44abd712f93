#include "dataplane/bpf/guard.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <libmnl/libmnl.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>

#include <array>
#include <cerrno>
#include <memory>

#include "guard.skel.h"

namespace maglev {
namespace {

constexpr std::string_view kGuardName = "maglev_guard";
constexpr std::array<std::string_view, 3> kGuardMaps = {"vips4", "vips6", "counters"};
// Before every other filter: an earlier one could accept VIP traffic.
constexpr uint32_t kPriority = 1;
constexpr uint32_t kHandle = 1;

bpf_tc_hook ingress_hook(uint32_t index) {
  LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = static_cast<int>(index),
              .attach_point = BPF_TC_INGRESS);
  return hook;
}

// What is in the guard's place: a program, or id 0.
std::expected<Program, std::string> current_filter(const std::string& interface, uint32_t index) {
  bpf_tc_hook hook = ingress_hook(index);
  LIBBPF_OPTS(bpf_tc_opts, options, .handle = kHandle, .priority = kPriority);
  LibbpfMessages messages;
  int error = bpf_tc_query(&hook, &options);
  // Without a filter there, or without the hook.
  if (error == -ENOENT || error == -EINVAL) return Program{};
  if (error != 0)
    return std::unexpected(
        libbpf_error(interface, "ask for the tc filter", -error, messages.text()));
  return open_program(interface, options.prog_id);
}

bool is_guard(const Program& program) {
  return program.is(kGuardName, kGuardMaps);
}

// Whether the hook has filters, on its way in or out.
std::expected<bool, std::string> has_filters(const std::string& interface, uint32_t index) {
  auto failed = [&] { return std::unexpected(libbpf_error(interface, "list tc filters", errno)); };
  std::unique_ptr<mnl_socket, decltype(&mnl_socket_close)> socket(mnl_socket_open(NETLINK_ROUTE),
                                                                  mnl_socket_close);
  if (!socket || mnl_socket_bind(socket.get(), 0, MNL_SOCKET_AUTOPID) != 0) return failed();

  bool found = false;
  auto on_filter = [](const nlmsghdr*, void* result) {
    *static_cast<bool*>(result) = true;
    return MNL_CB_OK;
  };
  for (uint32_t minor : {TC_H_MIN_INGRESS, TC_H_MIN_EGRESS}) {
    alignas(nlmsghdr) std::array<char, 16384> buffer{};
    nlmsghdr* header = mnl_nlmsg_put_header(buffer.data());
    header->nlmsg_type = RTM_GETTFILTER;
    header->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    auto* request = static_cast<tcmsg*>(mnl_nlmsg_put_extra_header(header, sizeof(tcmsg)));
    request->tcm_ifindex = static_cast<int>(index);
    request->tcm_parent = TC_H_MAKE(TC_H_CLSACT, minor);
    if (mnl_socket_sendto(socket.get(), header, header->nlmsg_len) < 0) return failed();
    for (int more = MNL_CB_OK; more > MNL_CB_STOP;) {
      ssize_t length = mnl_socket_recvfrom(socket.get(), buffer.data(), buffer.size());
      if (length < 0) return failed();
      more = mnl_cb_run(buffer.data(), static_cast<size_t>(length), 0, 0, on_filter, &found);
      if (more < 0) return failed();
    }
  }
  return found;
}

}  // namespace

std::expected<ProgramMaps, std::string> attach_guard(
    const std::string& interface, uint32_t index,
    const std::function<std::expected<void, std::string>(const ProgramMaps&)>& fill) {
  auto before = current_filter(interface, index);
  if (!before) return std::unexpected(before.error());
  if (before->id != 0 && !is_guard(*before))
    return std::unexpected(fmt::format(
        "{0}: tc ingress filter \"{1}\" (id {2}) is where the guard belongs (priority {3}, handle "
        "{4}) and is not ours; move it with `tc filter` to a later priority",
        interface, before->name, before->id, kPriority, kHandle));

  LibbpfMessages messages;
  auto failed = [&](std::string_view what, int error) {
    return std::unexpected(libbpf_error(interface, what, error, messages.text()));
  };
  std::unique_ptr<guard_bpf, decltype(&guard_bpf::destroy)> skeleton(guard_bpf::open_and_load(),
                                                                     guard_bpf::destroy);
  if (!skeleton) return failed("load the guard", errno);
  bpf_prog_info info{};
  uint32_t length = sizeof(info);
  int program_fd = bpf_program__fd(skeleton->progs.maglev_guard);
  if (bpf_obj_get_info_by_fd(program_fd, &info, &length) != 0)
    return failed("open the guard", errno);
  auto program = open_program(interface, info.id);
  if (!program) return std::unexpected(program.error());
  if (auto filled = fill(program->maps); !filled) return std::unexpected(filled.error());

  bpf_tc_hook hook = ingress_hook(index);
  if (int error = bpf_tc_hook_create(&hook); error != 0 && error != -EEXIST)
    return failed("create the tc ingress hook (clsact)", -error);
  LIBBPF_OPTS(bpf_tc_opts, options, .prog_fd = program_fd,
              .flags = before->id != 0 ? uint32_t{BPF_TC_F_REPLACE} : 0u, .handle = kHandle,
              .priority = kPriority);
  if (int error = bpf_tc_attach(&hook, &options); error != 0)
    return failed("attach the guard to the tc ingress hook", -error);
  return std::move(program->maps);
}

std::expected<void, std::string> detach_guard(const std::string& interface, uint32_t index) {
  auto program = current_filter(interface, index);
  if (!program) return std::unexpected(program.error());
  if (!is_guard(*program)) return {};
  LibbpfMessages messages;
  bpf_tc_hook hook = ingress_hook(index);
  LIBBPF_OPTS(bpf_tc_opts, options, .handle = kHandle, .priority = kPriority);
  if (int error = bpf_tc_detach(&hook, &options); error != 0)
    return std::unexpected(libbpf_error(interface, "detach the guard", -error, messages.text()));
  auto others = has_filters(interface, index);
  if (!others) return std::unexpected(others.error());
  if (*others) return {};
  // Both ways at once removes the hook itself.
  hook.attach_point = static_cast<bpf_tc_attach_point>(BPF_TC_INGRESS | BPF_TC_EGRESS);
  if (int error = bpf_tc_hook_destroy(&hook); error != 0)
    return std::unexpected(
        libbpf_error(interface, "remove the tc ingress hook", -error, messages.text()));
  return {};
}

}  // namespace maglev
