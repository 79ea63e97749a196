// The equation of an Einsum node.
#pragma once
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <string>

namespace recast::onnx_ir {

/// Every ellipsis written out in letters, one letter a dimension.
struct EinsumEquation {
  llvm::SmallVector<std::string> inputs;
  std::string output;
};

/// Reads `text` for inputs of these ranks; an output that is not written has the ellipsis and, in the order of the
/// alphabet, the letters that occur once. "" or what is wrong with it.
std::string parseEinsum(llvm::StringRef text, llvm::ArrayRef<int64_t> ranks, EinsumEquation &equation);

} // namespace recast::onnx_ir
