#include "runtime/session/Progress.h"
#include <algorithm>
#include <unistd.h>

namespace recast {

namespace {

constexpr int64_t kLines = 10;
constexpr int kBarWidth = 24;
constexpr std::chrono::milliseconds kRedraw(100);

std::string formatted(const char *format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

} // namespace

std::string durationText(double seconds) {
  auto whole = static_cast<int64_t>(seconds + 0.5);
  char buffer[64];
  if (whole >= 3600)
    std::snprintf(buffer, sizeof(buffer), "%lld:%02lld:%02lld", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole / 60 % 60), static_cast<long long>(whole % 60));
  else
    std::snprintf(buffer, sizeof(buffer), "%lld:%02lld", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  return buffer;
}

Progress::Progress(std::FILE *stream, int64_t done, int64_t total)
    : stream(stream), terminal(stream && isatty(fileno(stream))), first(done), total(total), start(Clock::now()),
      drawn(start - kRedraw) {}

Progress::~Progress() {
  if (open)
    std::fputc('\n', stream);
}

void Progress::update(int64_t step, std::optional<double> loss, std::optional<double> lossScale) {
  if (!stream)
    return;
  bool last = step == total;
  if (terminal) {
    if (Clock::now() - drawn < kRedraw && !last)
      return;
    drawn = Clock::now();
    // Erase to the end of the line: the text before may have been longer.
    std::fprintf(stream, "\r%s\x1b[K", text(step, loss, lossScale, true).c_str());
    std::fflush(stream);
    open = true;
    return;
  }
  if (step < nextLine && !last)
    return;
  std::fprintf(stream, "%s\n", text(step, loss, lossScale, false).c_str());
  nextLine = step + std::max<int64_t>((total - first) / kLines, 1);
}

void Progress::say(const std::string &line) {
  if (stream)
    std::fprintf(stream, "%s%s\n", open ? "\r\x1b[K" : "", line.c_str());
}

std::string Progress::text(int64_t step, std::optional<double> loss, std::optional<double> lossScale, bool bar) const {
  double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  double rate = seconds > 0 ? static_cast<double>(step - first) / seconds : 0;
  std::string line;
  if (bar) {
    auto filled = static_cast<int>(static_cast<double>(step) / static_cast<double>(total) * kBarWidth);
    line = "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "] ";
  }
  line += "step " + std::to_string(step) + "/" + std::to_string(total);
  if (loss)
    line += "  loss " + formatted("%.5g", *loss);
  if (lossScale)
    line += "  loss scale " + formatted("%g", *lossScale);
  line += "  " + formatted(rate >= 100 ? "%.0f" : "%.3g", rate) + " steps/s";
  if (step < total && rate > 0)
    line += "  ETA " + durationText(static_cast<double>(total - step) / rate);
  return line;
}

} // namespace recast
