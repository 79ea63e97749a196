// The tools' exit codes.
#pragma once

namespace recast::tools {

inline constexpr int kDone = 0, kFailed = 1, kUsage = 2;

} // namespace recast::tools
