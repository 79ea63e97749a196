#include "tests/ptx/PtxProgram.h"
#include "runtime/kernels/cuda/table/Ptx.h"

namespace recast::ptx {

Result<const Module *> moduleOf(std::string_view kernel) {
  static std::map<std::string_view, Result<std::unique_ptr<Module>>> modules;
  for (const cuda::PtxModule &own : cuda::ptxModules()) {
    auto known = modules.find(own.name);
    if (known == modules.end())
      known = modules.emplace(own.name, Module::parse(own.text)).first;
    if (!known->second)
      return Status::error(std::string(own.name) + ": " + known->second.message());
    if ((*known->second)->entry(kernel))
      return known->second->get();
  }
  return Status::error("no module has the kernel " + std::string(kernel));
}

std::set<std::string, std::less<>> &entriesRun() {
  static std::set<std::string, std::less<>> names;
  return names;
}

Status run(const Module &module, std::string_view kernel, const cuda::emulation::BoundLaunch &bound, bool reversed) {
  const Function *entry = module.entry(kernel);
  if (!entry)
    return Status::error("there is no entry " + std::string(kernel));
  if (bound.args.size() != entry->inputBytes)
    return Status::error(std::string(kernel) + ": its parameters have " + std::to_string(entry->inputBytes) +
                         " bytes, the arguments " + std::to_string(bound.args.size()));
  entriesRun().emplace(kernel);
  Memory memory;
  for (const cuda::emulation::Range &range : bound.ranges)
    memory.add(range.data, range.bytes, range.isWritten);
  return launch(module, *entry, {bound.blocks, bound.threads, reversed}, bound.args, memory);
}

Status runBound(const cuda::emulation::BoundLaunch &bound, bool reversed) {
  Result<const Module *> module = moduleOf(bound.kernel->name);
  return module ? run(**module, bound.kernel->name, bound, reversed) : module.status();
}

} // namespace recast::ptx
