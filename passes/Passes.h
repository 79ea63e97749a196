// The passes of recast (Passes.td), one file each.
#pragma once
#include "ir/onnx/Dialect.h"
#include "ir/train/Dialect.h"
#include "mlir/Pass/Pass.h"
#include <memory>
#include <string>
#include <vector>

namespace recast {
#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "passes/Passes.h.inc"
} // namespace recast
