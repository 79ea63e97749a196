#include "runtime/plan/Files.h"
#include "runtime/session/Dataset.h"
#include "runtime/session/Npy.h"
#include "runtime/session/Safetensors.h"
#include <algorithm>
#include <filesystem>

namespace recast {

namespace {

bool namesLabels(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find("label") != std::string::npos || name.find("target") != std::string::npos;
}

} // namespace

Result<TensorMap> readTensors(const std::string &path) {
  std::filesystem::path file(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored))
    return readNpyFolder(path);
  if (file.extension() == ".safetensors") {
    auto read = readSafetensors(path);
    if (!read)
      return read.status();
    return std::move(read->tensors);
  }
  if (file.extension() == ".npz")
    return readNpz(path);
  if (file.extension() == ".npy") {
    auto mapped = MappedFile::open(path);
    if (!mapped)
      return mapped.status();
    auto tensor = parseNpy((*mapped)->bytes(), *mapped, path);
    if (!tensor)
      return tensor.status();
    return TensorMap{{file.stem().string(), std::move(*tensor)}};
  }
  if (!std::filesystem::exists(file, ignored))
    return Status::error("cannot read '" + path + "': there is no such file");
  return Status::error("cannot tell what kind of data '" + path +
                       "' is: give a .safetensors, .npz, .npy or .bin file, or a folder of .npy files");
}

Result<TensorMap> readTokens(const std::string &path, std::span<const GraphInput> inputs) {
  std::vector<const GraphInput *> integers;
  for (const GraphInput &input : inputs) {
    bool integer = isInteger(input.type.dtype);
    if (integer && (input.type.rank() == 2 || input.type.rank() == 3))
      integers.push_back(&input);
  }
  if (integers.size() != inputs.size() || integers.empty() || integers.size() > 2)
    return Status::error("a token stream ('" + path +
                         "') fits models with one integer input [batch, T], or two: tokens and labels");
  const GraphInput *tokens = integers[0], *labels = integers.size() == 2 ? integers[1] : nullptr;
  if (labels && namesLabels(tokens->name) && !namesLabels(labels->name))
    std::swap(tokens, labels);
  int64_t length = tokens->type.dims.back();
  if (length < 1)
    return Status::error("the length of input '" + tokens->name + "' is not fixed: bind its last dimension with --dim");
  if (labels && labels->type.dims.back() != length)
    return Status::error("inputs '" + tokens->name + "' and '" + labels->name +
                         "' have unequal lengths: " + toString(tokens->type) + " and " + toString(labels->type));

  auto mapped = MappedFile::open(path);
  if (!mapped)
    return mapped.status();
  std::span<const std::byte> bytes = (*mapped)->bytes();
  int64_t count = static_cast<int64_t>(bytes.size() / sizeof(uint16_t));
  int64_t windows = std::max<int64_t>(count - (labels ? 1 : 0), 0) / length;
  if (bytes.size() % sizeof(uint16_t) || windows == 0)
    return Status::error("'" + path + "' is no stream of 16-bit tokens that is longer than " + std::to_string(length) +
                         " tokens: it has " + std::to_string(bytes.size()) + " bytes");
  TensorMap tensors;
  TensorType type{DType::U16, {windows, length}};
  tensors[tokens->name] = {type, bytes.data(), *mapped};
  if (labels)
    tensors[labels->name] = {type, bytes.data() + sizeof(uint16_t), *mapped};
  return tensors;
}

} // namespace recast
