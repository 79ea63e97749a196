// What operators lack, and why.
#pragma once
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace recast::tools {

struct Gap {
  llvm::StringLiteral op, column;
  llvm::StringLiteral versions; ///< Those without: "1, 7", as the table prints them; "all".
  llvm::StringLiteral reason;
};

/// All gaps that are known. One that is not listed, and one that is listed and is none, are errors.
llvm::ArrayRef<Gap> declaredGaps();

} // namespace recast::tools
