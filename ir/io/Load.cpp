#include "ir/io/Load.h"
#include "ir/io/Import.h"
#include "ir/io/TrainingInfo.h"
#include "ir/io/WireFormat.h"
#include "ir/train/Dialect.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "onnx/defs/parser.h"
#include "llvm/Support/Path.h"

using namespace mlir;
namespace recast::io {

void registerDialects(DialectRegistry &registry) { registry.insert<onnx_ir::ONNXDialect, train::TrainDialect>(); }

namespace {

enum class Format { Binary, OnnxText, Mlir };

// By the file's ending; standard input by its first bytes (a binary model starts with the tag of a field).
Format formatOf(StringRef path, ArrayRef<char> bytes) {
  if (path.ends_with(".mlir"))
    return Format::Mlir;
  if (path.ends_with(".onnxtxt"))
    return Format::OnnxText;
  if (path != "-")
    return Format::Binary;
  StringRef text = StringRef(bytes.data(), std::min<size_t>(bytes.size(), 4096)).ltrim();
  if (text.starts_with("<"))
    return Format::OnnxText;
  for (StringRef start : {"module", "\"builtin.module\"", "//", "#", "!", "{-#"})
    if (text.starts_with(start))
      return Format::Mlir;
  return Format::Binary;
}

// `fault` gets the first of the parser's errors with its place; others follow from it.
OwningOpRef<ModuleOp> parseText(MLIRContext &context, StringRef text, StringRef shown, std::string &fault) {
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (!fault.empty() || diagnostic.getSeverity() != DiagnosticSeverity::Error)
      return;
    if (auto place = dyn_cast<FileLineColLoc>(diagnostic.getLocation()))
      fault = ("line " + Twine(place.getLine()) + ", column " + Twine(place.getColumn()) + ": ").str();
    fault += diagnostic.str();
  });
  return parseSourceString<ModuleOp>(text, ParserConfig(&context), shown);
}

} // namespace

OwningOpRef<ModuleOp> loadModel(MLIRContext &context, const std::string &path, const LoadOptions &options,
                                std::vector<std::shared_ptr<MappedFile>> *files) {
  context.loadDialect<onnx_ir::ONNXDialect, train::TrainDialect>();
  std::string shown = path == "-" ? "standard input" : path;
  auto report = [&](const Twine &text) {
    emitError(UnknownLoc::get(&context)) << shown << ": " << text;
    return OwningOpRef<ModuleOp>();
  };
  auto file = path == "-" ? MappedFile::readStdin() : MappedFile::open(path);
  if (!file) {
    emitError(UnknownLoc::get(&context)) << llvm::toString(file.takeError());
    return nullptr;
  }
  if (files)
    *files = {*file};
  ArrayRef<char> bytes = (*file)->bytes();
  if (bytes.empty())
    return report("is empty: a model is needed");

  StringRef text(bytes.data(), bytes.size());
  Format format = formatOf(path, bytes);
  if (format == Format::Mlir) {
    std::string fault;
    OwningOpRef<ModuleOp> module = parseText(context, text, shown, fault);
    if (!fault.empty())
      return report(fault);
    return module && onnx_ir::mainGraph(*module) ? std::move(module) : report("holds no onnx.graph");
  }
  onnx::ModelProto model;
  std::string folder = path == "-" ? "" : llvm::sys::path::parent_path(path).str();
  try {
    if (format == Format::OnnxText) {
      std::string copy = text.str();
      onnx::OnnxParser parser(copy.c_str());
      if (auto status = parser.Parse(model); !status.IsOK())
        return report(status.ErrorMessage());
    } else {
      auto skeleton = extractTensors(bytes);
      if (!skeleton)
        return report(llvm::toString(skeleton.takeError()));
      if (!model.ParseFromString(*skeleton))
        return report("is no ONNX model: protobuf cannot parse it");
    }
    if (options.trainingInfo == TrainingInfo::Drop)
      model.clear_training_info();
    if (model.training_info_size() && options.trainingInfo == TrainingInfo::Join) {
      if (llvm::Error error = joinTraining(model))
        return report(llvm::toString(std::move(error)));
    } else if (format == Format::Binary) {
      inlineTrainingTensors(model, bytes);
    }
    TensorReader tensors(&context, format == Format::Binary ? *file : nullptr, folder);
    OwningOpRef<ModuleOp> module = importModel(context, model, tensors, shown, options);
    if (files)
      tensors.addFiles(*files);
    return module;
  } catch (const std::exception &error) {
    return report(error.what());
  }
}

} // namespace recast::io
