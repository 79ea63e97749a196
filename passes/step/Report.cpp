#include "passes/Report.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
namespace recast {

namespace {
constexpr StringLiteral kAttr = "recast.report";
}

void addReport(ModuleOp module, StringRef pass, llvm::json::Object facts) {
  facts["pass"] = pass;
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(std::move(facts));
  Builder b(module.getContext());
  SmallVector<Attribute> entries;
  if (auto earlier = module->getAttrOfType<ArrayAttr>(kAttr))
    entries.append(earlier.begin(), earlier.end());
  entries.push_back(b.getStringAttr(text));
  module->setAttr(kAttr, b.getArrayAttr(entries));
}

llvm::json::Object takeReport(ModuleOp module) {
  llvm::json::Array passes;
  if (auto entries = module->getAttrOfType<ArrayAttr>(kAttr))
    for (Attribute entry : entries)
      passes.push_back(llvm::cantFail(llvm::json::parse(cast<StringAttr>(entry).getValue())));
  module->removeAttr(kAttr);
  return llvm::json::Object{{"passes", std::move(passes)}};
}

} // namespace recast
