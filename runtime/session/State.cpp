#include "runtime/session/State.h"
#include <charconv>
#include <cstring>
#include <filesystem>

namespace recast {

namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";

template <typename Body> void forEachState(const Plan &plan, Body &&body) {
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].place == Place::State)
      body(plan.buffers[i], static_cast<int>(i));
}

} // namespace

Result<std::unique_ptr<AtomicFile>> stageState(const std::string &path, const Executor &executor,
                                               const Metadata &metadata) {
  std::vector<NamedTensor> tensors;
  forEachState(executor.plan(), [&](const Buffer &buffer, int index) {
    tensors.push_back({buffer.name, buffer.type, executor.tensor(index).data});
  });
  return stageSafetensors(path, std::move(tensors), metadata);
}

Result<Metadata> readState(const std::string &path, Executor &executor) {
  auto file = readSafetensors(path);
  if (!file)
    return file.status();
  std::string missing, wrong;
  bool any = false;
  forEachState(executor.plan(), [&](const Buffer &buffer, int) {
    any = true;
    auto it = file->tensors.find(buffer.name);
    if (it == file->tensors.end())
      missing += (missing.empty() ? "'" : ", '") + buffer.name + "'";
    else if (it->second.type != buffer.type && wrong.empty())
      wrong = "state '" + buffer.name + "' is " + toString(buffer.type) + " in the model and " +
              toString(it->second.type) + " in '" + path + "'";
  });
  if (!any)
    return Status::error("the model has no state to read from '" + path + "': it is no step model");
  if (!missing.empty())
    return Status::error("'" + path + "' does not hold the state " + missing + "; it has " +
                         listTensors(file->tensors));
  if (!wrong.empty())
    return Status::error(wrong);
  forEachState(executor.plan(), [&](const Buffer &buffer, int index) {
    const HostTensor &tensor = file->tensors.find(buffer.name)->second;
    std::string unused;
    convert(tensor.type.dtype, tensor.data, buffer.type.dtype, executor.tensor(index).data, buffer.type.elems(),
            unused);
  });
  return std::move(file->metadata);
}

void copyState(const Executor &from, Executor &to) {
  forEachState(to.plan(), [&](const Buffer &buffer, int index) {
    int source = from.find(buffer.name);
    if (source >= 0 && buffer.type.bytes())
      std::memcpy(to.tensor(index).data, from.tensor(source).data, buffer.type.bytes());
  });
}

std::string checkpointPath(const std::string &folder, int64_t step) {
  std::string number = std::to_string(step);
  number.insert(0, number.size() < 8 ? 8 - number.size() : 0, '0');
  return (std::filesystem::path(folder) / (std::string(kPrefix) + number + std::string(kSuffix))).string();
}

std::string latestCheckpoint(const std::string &folder) {
  int64_t latest = -1;
  std::string path;
  std::error_code ignored;
  for (const auto &entry : std::filesystem::directory_iterator(folder, ignored)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix))
      continue;
    int64_t step = -1;
    const char *first = name.data() + kPrefix.size(), *last = name.data() + name.size() - kSuffix.size();
    auto [end, error] = std::from_chars(first, last, step);
    if (error == std::errc() && end == last && step > latest) {
      latest = step;
      path = entry.path().string();
    }
  }
  return path;
}

} // namespace recast
