// What a user sees while a training runs: a bar on a terminal, about ten plain lines elsewhere.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace recast {

class Progress {
public:
  using Clock = std::chrono::steady_clock;

  /// `total` steps, of which `done` were done before. A null stream is silent.
  Progress(std::FILE *stream, int64_t done, int64_t total);
  /// Ends the bar's line.
  ~Progress();
  /// Call after every step, counted from 1. A terminal is written to at most ten times a second.
  void update(int64_t step, std::optional<double> loss, std::optional<double> lossScale);

  /// A line of its own, between the others.
  void say(const std::string &line);

private:
  std::string text(int64_t step, std::optional<double> loss, std::optional<double> lossScale, bool bar) const;

  std::FILE *stream;
  bool terminal = false, open = false;
  int64_t first, total, nextLine = 0;
  Clock::time_point start, drawn;
};

/// "1:02:03", "2:03".
std::string durationText(double seconds);

} // namespace recast
