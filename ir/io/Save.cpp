#include "ir/io/Save.h"
#include "ir/io/Export.h"
#include "ir/io/TrainingInfo.h"
#include "ir/io/WireFormat.h"
#include "onnx/defs/printer.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/raw_ostream.h"
#include <filesystem>
#include <sstream>

using namespace llvm;
namespace fs = std::filesystem;
namespace recast::io {

namespace {

constexpr uint64_t kProtobufLimit = (uint64_t(1) << 31) - (64 << 20); // with room for the graph itself
constexpr uint64_t kAlignment = 4096;                                 // of tensors in a data file, for mapping

fs::path folderOf(const std::string &path) {
  fs::path folder = path == "-" ? fs::path() : fs::path(path).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

bool sameFolder(const std::string &a, const std::string &b) {
  std::error_code code;
  return fs::equivalent(folderOf(a), folderOf(b), code);
}

// The same bytes under the same relative name beside the output.
Error copyExternalFiles(const onnx::ModelProto &model, const std::string &source, const std::string &target) {
  StringSet<> done;
  std::vector<const onnx::TensorProto *> tensors;
  auto collect = [&](const onnx::GraphProto &graph) {
    for (const auto &tensor : graph.initializer())
      tensors.push_back(&tensor);
  };
  collect(model.graph());
  for (const auto &info : model.training_info()) {
    collect(info.initialization());
    collect(info.algorithm());
  }
  for (const auto *tensor : tensors)
    for (const auto &entry : tensor->external_data()) {
      if (entry.key() != "location" || !done.insert(entry.value()).second)
        continue;
      fs::path from = folderOf(source) / entry.value(), to = folderOf(target) / entry.value();
      auto file = MappedFile::open(from.string());
      if (!file)
        return file.takeError();
      std::error_code code;
      if (fs::exists(to, code)) {
        auto existing = MappedFile::open(to.string());
        if (existing && (*existing)->bytes() == (*file)->bytes())
          continue;
        consumeError(existing.takeError());
        return createStringError(to.string() + ": exists and holds something else than the model's external data; "
                                               "choose another folder for the output");
      }
      fs::create_directories(to.parent_path(), code);
      auto copy = OutputFile::create(to.string());
      if (!copy)
        return copy.takeError();
      if (Error error = (*copy)->write((*file)->bytes(), file->get()))
        return error;
      if (Error error = (*copy)->commit())
        return error;
    }
  return Error::success();
}

// Moves every token's data into `<path>.data`; all-zero tensors become holes.
Error moveToDataFile(ExportedModel &model, const std::string &path, const MappedFile *source) {
  std::string dataPath = path + ".data", location = fs::path(dataPath).filename().string();
  auto data = OutputFile::create(dataPath);
  if (!data)
    return data.takeError();
  for (auto [bytes, holder] : zip(model.tensors, model.holders)) {
    uint64_t padding = (kAlignment - (*data)->position() % kAlignment) % kAlignment;
    if (Error error = (*data)->skip(padding))
      return error;
    uint64_t offset = (*data)->position();
    bool zero = all_of(bytes, [](char c) { return c == 0; });
    if (Error error = zero ? (*data)->skip(bytes.size()) : (*data)->write(bytes, source))
      return error;
    holder->clear_raw_data();
    holder->set_data_location(onnx::TensorProto::EXTERNAL);
    for (auto [key, value] : {std::pair<std::string, std::string>{"location", location},
                              {"offset", std::to_string(offset)},
                              {"length", std::to_string(bytes.size())}}) {
      auto &entry = *holder->add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
  }
  return (*data)->commit();
}

Error writeWhole(const std::string &text, const std::string &path) {
  auto out = OutputFile::create(path);
  if (!out)
    return out.takeError();
  if (Error error = (*out)->write(text))
    return error;
  return (*out)->commit();
}

} // namespace

Error saveText(mlir::ModuleOp module, const std::string &path) {
  std::string text;
  raw_string_ostream stream(text);
  module->print(stream);
  return writeWhole(text + "\n", path);
}

Error saveModel(mlir::ModuleOp module, const std::string &path, const std::string &sourcePath, const MappedFile *source,
                bool asTrainingInfo) {
  if (StringRef(path).ends_with(".mlir"))
    return saveText(module, path);
  bool isText = StringRef(path).ends_with(".onnxtxt");
  std::string fault;
  auto exported = [&] {
    mlir::ScopedDiagnosticHandler handler(module.getContext(), [&](mlir::Diagnostic &diagnostic) {
      bool isFirst = fault.empty() && diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error;
      if (isFirst)
        fault = diagnostic.str();
      return mlir::success(isFirst || diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error);
    });
    return exportModel(module, /*keepExternal=*/path != "-" && sourcePath != "-" && !isText);
  }();
  if (mlir::failed(exported))
    return createStringError(path + ": not written, the model cannot be expressed in ONNX: " + fault);
  if (isText) {
    for (auto [bytes, holder] : zip(exported->tensors, exported->holders))
      holder->set_raw_data(bytes.data(), bytes.size());
    if (Error error = asTrainingInfo ? splitTraining(*exported->proto) : Error::success())
      return error;
    std::ostringstream stream;
    stream << *exported->proto;
    return writeWhole(stream.str() + "\n", path);
  }
  if ((exported->hasExternal || exported->proto->training_info_size()) && !sameFolder(path, sourcePath))
    if (Error error = copyExternalFiles(*exported->proto, sourcePath, path))
      return error;
  uint64_t total = 0;
  for (ArrayRef<char> bytes : exported->tensors)
    total += bytes.size();
  if (total > kProtobufLimit) {
    if (path == "-")
      return createStringError("the model exceeds 2 GiB and cannot go to standard output");
    if (Error error = moveToDataFile(*exported, path, source))
      return error;
    exported->tensors.clear();
  }
  if (Error error = asTrainingInfo ? splitTraining(*exported->proto) : Error::success())
    return error;
  std::string skeleton;
  if (!exported->proto->SerializeToString(&skeleton))
    return createStringError(path + ": not written, the graph without its weights exceeds 2 GiB");
  auto out = OutputFile::create(path);
  if (!out)
    return out.takeError();
  if (Error error = writeWithTensors(skeleton, exported->tensors, **out, source))
    return error;
  return (*out)->commit();
}

} // namespace recast::io
