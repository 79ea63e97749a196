#include "runtime/session/Metrics.h"
#include "runtime/plan/Files.h"
#include "runtime/session/TensorBoard.h"
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace recast {

namespace {

double wallSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A file that grows by whole records.
class Log {
public:
  explicit Log(std::string path) : path(std::move(path)) {}
  ~Log() {
    if (descriptor >= 0)
      ::close(descriptor);
  }
  bool isOpen() const { return descriptor >= 0; }
  Status open(int flags) {
    descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666);
    return descriptor < 0 ? systemError("write", path) : Status::success();
  }
  Status append(const std::string &bytes) {
    ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    return written == static_cast<ssize_t>(bytes.size()) ? Status::success() : systemError("write", path);
  }
  const std::string path;

private:
  int descriptor = -1;
};

class JsonLines final : public MetricsWriter {
public:
  JsonLines(std::string path, bool append) : log(std::move(path)), append(append) {}
  Status write(int64_t step, std::span<const Metric> metrics) override {
    if (!log.isOpen())
      if (Status status = log.open(append ? 0 : O_TRUNC); !status.ok())
        return status;
    return log.append(metricsLine(step, metrics) + "\n");
  }

private:
  Log log;
  bool append;
};

class EventFile final : public MetricsWriter {
public:
  explicit EventFile(std::string path) : log(std::move(path)) {}
  Status write(int64_t step, std::span<const Metric> metrics) override {
    double now = wallSeconds();
    std::string bytes;
    if (!log.isOpen()) {
      std::error_code error;
      std::filesystem::create_directories(std::filesystem::path(log.path).parent_path(), error);
      if (Status status = log.open(O_EXCL); !status.ok())
        return status;
      bytes = tensorboard::record(tensorboard::versionEvent(now));
    }
    std::vector<std::pair<std::string, float>> scalars;
    for (const Metric &metric : metrics)
      scalars.emplace_back(metric.name, std::visit([](auto v) { return static_cast<float>(v); }, metric.value));
    return log.append(bytes + tensorboard::record(tensorboard::scalarsEvent(now, step, scalars)));
  }

private:
  Log log;
};

/// Rewrites the file without the lines of later steps, which the interrupted run had logged after its checkpoint.
Status keepLinesUpTo(const std::string &path, int64_t lastStep) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return Status::success();
  auto old = MappedFile::open(path);
  if (!old)
    return old.status();
  std::string_view text(reinterpret_cast<const char *>((*old)->bytes().data()), (*old)->bytes().size());
  std::string kept;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    nlohmann::json line = nlohmann::json::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer() &&
        line["step"].get<int64_t>() <= lastStep)
      kept += std::string(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  auto file = AtomicFile::create(path);
  if (!file)
    return file.status();
  Status status = (*file)->write(kept);
  return status.ok() ? (*file)->commit() : status;
}

std::string hostName() {
  char buffer[256] = {};
  return gethostname(buffer, sizeof(buffer) - 1) == 0 ? buffer : "localhost";
}

} // namespace

Result<std::unique_ptr<MetricsWriter>> MetricsWriter::create(const std::string &path, int64_t resumeAfter) {
  std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".jsonl" || extension == ".json") {
    Status status = checkWritable(path);
    if (status.ok() && resumeAfter >= 0)
      status = keepLinesUpTo(path, resumeAfter);
    if (!status.ok())
      return status;
    return std::unique_ptr<MetricsWriter>(std::make_unique<JsonLines>(path, resumeAfter >= 0));
  }
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_directory(path, ignored))
    return Status::error("cannot write metrics to '" + path + "': give a folder, or a name that ends in .jsonl");
  std::string file = "events.out.tfevents." + std::to_string(static_cast<int64_t>(wallSeconds())) + "." +
                     std::to_string(getpid()) + "." + hostName();
  return std::unique_ptr<MetricsWriter>(std::make_unique<EventFile>((std::filesystem::path(path) / file).string()));
}

std::string metricsLine(int64_t step, std::span<const Metric> metrics) {
  nlohmann::ordered_json line;
  line["step"] = step;
  for (const Metric &metric : metrics) {
    const double *real = std::get_if<double>(&metric.value);
    if (real && !std::isfinite(*real))
      line[metric.name] = std::isnan(*real) ? "nan" : *real > 0 ? "inf" : "-inf";
    else
      std::visit([&](auto value) { line[metric.name] = value; }, metric.value);
  }
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace recast
