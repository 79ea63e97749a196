// Compiled plans as files, which run without the model's compiler. docs/plan-file.md describes the format.
#pragma once
#include "runtime/plan/Files.h"
#include "runtime/plan/Plan.h"

namespace recast {

/// A mapped file that a plan's data may be views or copies of.
struct PlanSource {
  std::string path;
  std::span<const std::byte> bytes;
};

/// Writes a plan under `path` by rename; "-" is standard output. Data that lies in one of `sources` is referred to by a
/// path relative to the plan; all other data is embedded, and so is everything where there is no path to be relative
/// to. Replaces none of the files that it refers to.
Status writePlan(const Plan &plan, const std::string &path, std::span<const PlanSource> sources);

/// Whether a file starts as plans do, whatever follows. False where it cannot be read.
bool isPlan(const std::string &path);

/// Reads a plan, and maps the files that it refers to. An error says what is wrong with the file: damaged, of another
/// format or machine, or that data which it refers to is no longer what it was.
Result<std::unique_ptr<Plan>> readPlan(const std::string &path);

/// The same for bytes in memory, which `owner` keeps alive; they start at a multiple of 64. `path` is where they come
/// from: errors name it, and references start there.
Result<std::unique_ptr<Plan>> readPlan(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                       const std::string &path);

} // namespace recast
