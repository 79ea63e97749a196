#include "runtime/session/Schedule.h"
#include "runtime/plan/Files.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

namespace recast {

namespace {

Result<std::vector<double>> readRates(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return Status::error("--lr-schedule is none of constant, linear and cosine, and as a file: " + file.message());
  std::string text(reinterpret_cast<const char *>((*file)->bytes().data()), (*file)->bytes().size());
  size_t start = text.find_first_not_of(" \t\r\n");
  if (start != std::string::npos && text[start] != '[') {
    // One number a line is a JSON list once the breaks are commas.
    std::string list = "[";
    size_t line = 1;
    for (size_t begin = 0; begin < text.size(); ++line) {
      size_t end = std::min(text.find('\n', begin), text.size());
      std::string word = text.substr(begin, end - begin);
      if (word.find_first_not_of(" \t\r") != std::string::npos) {
        if (!nlohmann::json::parse(word, nullptr, false).is_number())
          return Status::error("line " + std::to_string(line) + " of '" + path + "' is no number");
        list += (list.size() > 1 ? "," : "") + word;
      }
      begin = end + 1;
    }
    text = list + "]";
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  bool numbers = json.is_array() && !json.empty() &&
                 std::ranges::all_of(json, [](const nlohmann::json &value) { return value.is_number(); });
  if (!numbers)
    return Status::error("'" + path + "' is no list of learning rates: write one number a line, or a JSON list");
  return json.get<std::vector<double>>();
}

} // namespace

Result<Schedule> Schedule::create(const ScheduleOptions &options, double baseLr, int64_t totalSteps) {
  Schedule schedule;
  schedule.warmupSteps = options.warmupSteps;
  schedule.totalSteps = totalSteps;
  schedule.baseLr = baseLr;
  schedule.minLr = options.minLr;
  if (options.kind == "linear")
    schedule.kind = Kind::Linear;
  else if (options.kind == "cosine")
    schedule.kind = Kind::Cosine;
  else if (options.kind != "constant") {
    schedule.kind = Kind::File;
    auto rates = readRates(options.kind);
    if (!rates)
      return rates.status();
    schedule.rates = std::move(*rates);
    if (static_cast<int64_t>(schedule.rates.size()) < totalSteps)
      return Status::error("'" + options.kind + "' has " + std::to_string(schedule.rates.size()) +
                           " learning rates, and the run takes " + std::to_string(totalSteps) + " steps");
    if (options.warmupSteps)
      return Status::error("a learning-rate file gives every step's rate: --warmup-steps does not go with it");
  }
  return schedule;
}

double Schedule::at(int64_t step) const {
  if (kind == Kind::File)
    return rates[static_cast<size_t>(step)];
  if (step < warmupSteps)
    return baseLr * static_cast<double>(step + 1) / static_cast<double>(warmupSteps);
  double span = static_cast<double>(std::max<int64_t>(totalSteps - warmupSteps, 1));
  double r = std::min(static_cast<double>(step - warmupSteps) / span, 1.0);
  if (kind == Kind::Linear)
    return baseLr + r * (minLr - baseLr);
  if (kind == Kind::Cosine)
    return minLr + (baseLr - minLr) * 0.5 * (1 + std::cos(std::numbers::pi * r));
  return baseLr;
}

std::string Schedule::describe() const {
  if (!changes())
    return "constant";
  if (kind == Kind::File)
    return "file " + nlohmann::json(rates).dump();
  std::string text = kind == Kind::Linear ? "linear" : kind == Kind::Cosine ? "cosine" : "constant";
  text += " from " + nlohmann::json(baseLr).dump() + ", warm-up " + std::to_string(warmupSteps);
  if (kind != Kind::Constant)
    text += ", to " + nlohmann::json(minLr).dump() + " over " + std::to_string(totalSteps) + " steps";
  return text;
}

} // namespace recast
