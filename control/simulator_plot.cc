#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "control/simulator_views.h"

namespace maglev {
namespace {

constexpr double kWidth = 900;
constexpr double kTop = 60;
constexpr double kBarWidth = 24;
constexpr double kBeforeLeft = 200;
constexpr double kAfterLeft = kWidth - 200 - kBarWidth;
constexpr double kReadable = 11;  // lower bars get no label

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

// Where a node's bar is, and up to where bands have used its edge.
struct Bar {
  double top = 0;
  double height = 0;
  double used = 0;
};

class Drawing {
 public:
  Drawing(const Change& change, double height) : height_(height) {
    // One colour a node, the same on both sides: the hue goes round once.
    for (const Balance* side : {&change.before, &change.after}) {
      for (const NodeLoad& node : side->nodes) hues_.emplace(node.name, 0);
    }
    double hue = 0;
    for (auto& [name, value] : hues_) {
      value = hue;
      hue += 360.0 / static_cast<double>(hues_.size());
    }
  }

  std::string draw(const Change& change, std::string_view title) {
    begin(title, change);
    auto before = draw_bars(change.before, kBeforeLeft, true);
    auto after = draw_bars(change.after, kAfterLeft, false);
    const double total = static_cast<double>(change.movement.total);
    for (const auto& [pair, moved] : change.movement.flows) {
      const auto from = before.find(pair.first);
      const auto to = after.find(pair.second);
      if (from == before.end() || to == after.end()) continue;
      draw_band(from->second, to->second, height_ * static_cast<double>(moved) / total,
                fmt::format("{} to {}: {} keys", pair.first, pair.second, moved),
                hues_.at(pair.second));
    }
    return out_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void begin(std::string_view title, const Change& change) {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
        "font-family=\"sans-serif\" "
        "font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kWidth, kTop + height_ + 20);
    put("<text x=\"{}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\">{}: {} of {} keys move, "
        "{} "
        "between nodes that did not change</text>\n",
        kWidth / 2, title, change.movement.moved, change.movement.total,
        change.movement.moved_between_unchanged);
    put("<text x=\"{}\" y=\"48\" text-anchor=\"end\">shares before</text>\n"
        "<text x=\"{}\" y=\"48\">shares after</text>\n",
        kBeforeLeft + kBarWidth, kAfterLeft);
  }

  std::map<std::string_view, Bar> draw_bars(const Balance& balance, double x, bool left) {
    std::map<std::string_view, Bar> bars;
    double top = kTop;
    for (const NodeLoad& node : balance.nodes) {
      const Bar bar{top, height_ * node.share, 0};
      bars.emplace(node.name, bar);
      put("<rect x=\"{}\" y=\"{:.2f}\" width=\"{}\" height=\"{:.2f}\" fill=\"hsl({:.0f},55%,60%)\" "
          "stroke=\"white\" stroke-width=\"0.5\"><title>{}: {} keys, {:.2f} %, wanted {:.2f} "
          "%</title></rect>\n",
          x, bar.top, kBarWidth, bar.height, hues_.at(node.name), escaped(node.name), node.load,
          node.share * 100, node.wanted * 100);
      if (bar.height >= kReadable) {
        put("<text x=\"{}\" y=\"{:.2f}\" text-anchor=\"{}\">{} {:.2f} %</text>\n",
            left ? x - 6 : x + kBarWidth + 6, bar.top + bar.height / 2 + 4, left ? "end" : "start",
            escaped(node.name), node.share * 100);
      }
      top += bar.height;
    }
    return bars;
  }

  void draw_band(Bar& from, Bar& to, double thickness, const std::string& about, double hue) {
    const double x1 = kBeforeLeft + kBarWidth, x2 = kAfterLeft, middle = (x1 + x2) / 2;
    const double y1 = from.top + from.used, y2 = to.top + to.used;
    from.used += thickness;
    to.used += thickness;
    put("<path d=\"M{0:.2f},{1:.2f} C{2:.2f},{1:.2f} {2:.2f},{3:.2f} {4:.2f},{3:.2f} "
        "L{4:.2f},{5:.2f} "
        "C{2:.2f},{5:.2f} {2:.2f},{6:.2f} {0:.2f},{6:.2f} Z\" fill=\"hsl({7:.0f},55%,60%)\" "
        "fill-opacity=\"0.6\"><title>{8}</title></path>\n",
        x1, y1, middle, y2, x2, y2 + thickness, y1 + thickness, hue, escaped(about));
  }

  double height_;
  std::map<std::string_view, double> hues_;
  std::string out_;
};

}  // namespace

std::string simulation_svg(const Simulation& simulation) {
  const size_t nodes =
      std::max(simulation.keys.before.nodes.size(), simulation.keys.after.nodes.size());
  const double height = std::clamp(18.0 * static_cast<double>(nodes), 360.0, 2400.0);
  return Drawing(simulation.keys, height).draw(simulation.keys, to_text(simulation.kind));
}

}  // namespace maglev
