// What bench/pps needs beside the daemon: flows to replay, tables to forward them by, and the rate.
//
//   pps_rig make DIRECTORY FLOWS BACKENDS   writes DIRECTORY/flows.pcap (64-byte TCP SYN frames,
//   less
//                                           the frame check sequence) and a published tree whose
//                                           backends are reached by port 1
//   pps_rig rate DIRECTORY SECONDS          reads the dataplane's report twice and prints, from the
//                                           difference: packets per second received and forwarded
#include <pcap/pcap.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>

#include "tables/report.h"
#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using namespace testing;
namespace fs = std::filesystem;

constexpr size_t kFrameLength = 60;  // 64 with the frame check sequence

void write_file(const fs::path& path, const Image& image) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(image.data()),
             static_cast<std::streamsize>(image.size()));
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

void write_flows(const fs::path& path, uint32_t flows) {
  pcap_t* format = pcap_open_dead(DLT_EN10MB, 65535);
  pcap_dumper_t* file = pcap_dump_open(format, path.c_str());
  if (file == nullptr) throw std::runtime_error(pcap_geterr(format));
  std::mt19937 random(flows);
  pcap_pkthdr header{{}, kFrameLength, kFrameLength};
  for (uint32_t i = 0; i < flows; ++i) {
    // Distinct by construction: the number is spread over the source address and port.
    Bytes frame = make_frame({.source = fmt::format("198.19.{}.{}", i >> 8 & 255, i & 255),
                              .source_port = static_cast<uint16_t>(1024 + (i >> 16)),
                              .payload_bytes = 6});
    frame[kEthernetHeaderLength + kIpv4SourceOffset + 1] = static_cast<uint8_t>(random());
    pcap_dump(reinterpret_cast<u_char*>(file), &header, frame.data());
  }
  pcap_dump_close(file);
  pcap_close(format);
}

void make(const fs::path& directory, uint32_t flows, uint32_t backends) {
  const Tree tree = make_tree(1, backends, 65537, {make_vip("web", "198.51.100.10", 80)}, 42, 1);
  const auto name = [](const auto& view) { return view->checksum.hex(); };
  write_file(directory / kTableDirectory / name(check_table_file(tree.table)), tree.table);
  write_file(directory / kPoolDirectory / name(check_pool_file(tree.pool)), tree.pool);
  write_file(directory / kRootFileName, tree.root);
  write_flows(directory / "flows.pcap", flows);
}

Report read_report(const fs::path& directory) {
  const fs::path path = directory / kReportFileName;
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::byte> image(text.size());
  std::memcpy(image.data(), text.data(), text.size());
  auto report = check_report_file(image);
  if (!report) throw std::runtime_error(path.string() + ": " + report.error());
  return *report;
}

void print_rate(const fs::path& directory, double seconds) {
  const Report before = read_report(directory);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const Report after = read_report(directory);
  const auto received = [](const Report& r) { return r.workers.at(0).received.packets; };
  const auto forwarded = [](const Report& r) {
    return r.verdict_counts.at(static_cast<size_t>(Verdict::kForwarded));  // of worker 0
  };
  const double elapsed = static_cast<double>(after.written_ns - before.written_ns) / 1e9;
  fmt::print("{:.0f} {:.0f}\n", static_cast<double>(received(after) - received(before)) / elapsed,
             static_cast<double>(forwarded(after) - forwarded(before)) / elapsed);
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4 && arguments[0] == "make") {
    make(arguments[1], static_cast<uint32_t>(std::stoul(arguments[2])),
         static_cast<uint32_t>(std::stoul(arguments[3])));
  } else if (arguments.size() == 3 && arguments[0] == "rate") {
    print_rate(arguments[1], std::stod(arguments[2]));
  } else {
    fmt::print(stderr, "usage: pps_rig make DIRECTORY FLOWS BACKENDS | rate DIRECTORY SECONDS\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  try {
    return maglev::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "pps_rig: {}\n", e.what());
    return 1;
  }
}
