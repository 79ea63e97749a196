// Rotary position tables (Su et al. 2021, https://arxiv.org/abs/2104.09864), as exporters fold them into constants.
#pragma once
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include <optional>

namespace recast::onnx_ir {

/// Whether `table`, [rows, columns] of floats, is cos or sin of position * base^(-2i/columns), in float arithmetic, for
/// one of the bases in use: every single element must agree to one unit in the last place. Then the same table in
/// double, from the frequencies as floats, which is what the model computes when it runs in double.
std::optional<llvm::SmallVector<double>> widenRotaryTable(llvm::ArrayRef<double> table, int64_t rows, int64_t columns);

} // namespace recast::onnx_ir
