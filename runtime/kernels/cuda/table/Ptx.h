// The PTX of the kernels, in the program itself.
#pragma once
#include <span>
#include <string_view>

namespace recast::cuda {

struct PtxModule {
  std::string_view name; ///< Of the file in source/.
  const char *text;      ///< Ends with a 0.
};
std::span<const PtxModule> ptxModules();

} // namespace recast::cuda
