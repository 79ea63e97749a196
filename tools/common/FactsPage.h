// Facts, which the tools write as JSON, as a page to read.
#pragma once
#include "llvm/Support/JSON.h"

namespace recast::tools {

/// Text that is safe between tags and in attributes.
std::string escapeHtml(llvm::StringRef text);

/// A page without scripts or links: objects and lists of objects as tables, long lists folded.
std::string factsPage(const llvm::json::Object &facts, llvm::StringRef title);

} // namespace recast::tools
