#include "runtime/fusion/CodeGen.h"
#include "runtime/fusion/Cache.h"
#include "runtime/fusion/Emit.h"
#include "runtime/fusion/Lower.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/TargetParser/Host.h"
#include <map>

namespace recast::fusion {

namespace {

/// Part of every name: changes with what is generated. RECAST_GENERATOR is a hash of this folder's sources.
constexpr std::string_view kGenerator = RECAST_GENERATOR " llvm-" LLVM_VERSION_STRING;

/// Code is for one of two levels of the x86-64 ABI, and not for the very processor: so it gives the same numbers on all
/// that have the level, and the loader can check it.
struct Host {
  std::string triple = llvm::sys::getProcessTriple(), level;
  std::string features;
  bool hasAvx512 = false, hasAvx2 = false;

  Host() {
    llvm::StringMap<bool> found = llvm::sys::getHostCPUFeatures();
    auto hasAll = [&](std::initializer_list<llvm::StringRef> names) {
      return llvm::all_of(names, [&](llvm::StringRef name) { return found.lookup(name); });
    };
    hasAvx2 = hasAll({"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"});
    hasAvx512 = hasAvx2 && hasAll({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
    level = hasAvx512 ? "x86-64-v4" : "x86-64-v3";
    features = hasAvx512 ? "-prefer-256-bit" : "";
  }
};

const Host &host() {
  static const Host found;
  return found;
}

EmitOptions emitOptions() { return {host().hasAvx512 ? 16 : 8, host().hasAvx512}; }

/// A folder that is gone when the object is.
struct TemporaryFolder {
  llvm::SmallString<128> path;
  TemporaryFolder() {
    if (llvm::sys::fs::createUniqueDirectory("recast-regions", path))
      path.clear();
  }
  ~TemporaryFolder() {
    if (!path.empty())
      llvm::sys::fs::remove_directories(path);
  }
};

bool writeFile(const std::string &path, const std::string &bytes) {
  std::error_code error;
  llvm::raw_fd_ostream out(path, error);
  if (error)
    return false;
  out << bytes;
  out.close();
  return !out.has_error();
}

/// The program that links; "" where there is none.
const std::string &linkerPath() {
  static const std::string found = [] {
    for (const std::string &name :
         {"ld.lld-" + std::to_string(LLVM_VERSION_MAJOR), std::string("ld.lld"), std::string("ld")})
      if (auto path = llvm::sys::findProgramByName(name))
        return *path;
    return std::string();
  }();
  return found;
}

/// Writes numbers and text, each with its end.
class Printer {
public:
  Printer &operator<<(int64_t value) {
    text += std::to_string(value) + ' ';
    return *this;
  }
  void map(const Map &map) {
    *this << static_cast<int64_t>(map.size());
    for (const Digit &digit : map)
      *this << digit.div << digit.size << digit.stride;
  }
  std::string text;
};

} // namespace

Result<std::string> linkObjects(const std::vector<std::string> &objects) {
  const std::string &linker = linkerPath();
  TemporaryFolder folder;
  if (folder.path.empty())
    return Status::error("generated code cannot be linked: no folder for temporary files can be made");
  std::string base = folder.path.str().str(), out = base + "/regions.so";
  std::vector<std::string> args = {linker, "-shared", "--hash-style=gnu", "-o", out};
  for (size_t i = 0; i < objects.size(); ++i) {
    args.push_back(base + "/" + std::to_string(i) + ".o");
    if (!writeFile(args.back(), objects[i]))
      return Status::error("generated code cannot be written to " + base);
  }
  std::vector<llvm::StringRef> views(args.begin(), args.end());
  std::string problem;
  if (llvm::sys::ExecuteAndWait(linker, views, std::nullopt, {}, 0, 0, &problem) != 0)
    return Status::error("linking generated code with " + linker + " failed" + (problem.empty() ? "" : ": " + problem));
  auto file = llvm::MemoryBuffer::getFile(out);
  if (!file)
    return Status::error("linking generated code with " + linker + " gave no file");
  return (*file)->getBuffer().str();
}

std::string whyNoCode() {
  if (!host().hasAvx2)
    return "generated code needs a processor with AVX2, FMA and F16C";
  return linkerPath().empty() ? "generated code needs a linker: install lld, or put ld.lld into PATH" : "";
}

std::string hostTarget() { return host().level; }

std::string contentName(const Region &region, const Program &program) {
  Printer out;
  out.text = std::string(kGenerator) + " " + host().level + " ";
  out << static_cast<int64_t>(region.inputs.size()) << static_cast<int64_t>(region.outputs.size());
  for (const SlotInfo &slot : program.slots)
    out << int64_t(slot.type) << slot.elems << slot.chunks << static_cast<int64_t>(slot.offset);
  for (const Phase &phase : program.phases) {
    out << phase.count << phase.inner << phase.rowsPerRange << phase.passes;
    for (const Node &node : phase.nodes) {
      out << node.kind << int64_t(node.op) << int64_t(node.type) << static_cast<int64_t>(node.args.size());
      for (int arg : node.args)
        out << arg;
      out.map(node.map);
      out << node.index << std::bit_cast<int64_t>(node.number) << node.integer << int64_t(node.level) << node.pass;
    }
    for (const Store &store : phase.stores) {
      out << store.node << store.isSlot << store.index;
      out.map(store.map);
    }
    for (const Accumulation &accumulation : phase.accumulations) {
      out << accumulation.node << int64_t(accumulation.op) << accumulation.slot;
      out.map(accumulation.kept);
    }
  }
  return "r" + hashOf(out.text) + hashOf(out.text + "2");
}

Result<std::string> compileKernels(std::span<const Kernel> kernels) {
  std::map<std::string, const Kernel *> distinct;
  for (const Kernel &kernel : kernels)
    distinct[kernel.name] = &kernel;
  std::string names;
  for (const auto &[name, kernel] : distinct)
    names += name;
  Cache cache;
  std::string whole = "p" + hashOf(names) + hashOf(names + "2") + ".so";
  if (auto known = cache.read(whole))
    return std::move(*known);
  std::optional<Lowering> lowering;
  std::vector<std::string> objects;
  for (const auto &[name, kernel] : distinct) {
    if (auto known = cache.read(name + ".o")) {
      objects.push_back(std::move(*known));
      continue;
    }
    if (!lowering)
      lowering.emplace(createTarget(host().triple, host().level, host().features));
    Result<std::string> object = lowering->lower(
        [&, kernel = kernel](mlir::ModuleOp module) {
          emit(module, kernel->name, *kernel->region, *kernel->program, emitOptions());
        },
        llvm::CodeGenFileType::ObjectFile);
    if (!object)
      return object.status();
    cache.write(name + ".o", *object);
    objects.push_back(std::move(*object));
  }
  Result<std::string> linked = linkObjects(objects);
  if (linked)
    cache.write(whole, *linked);
  return linked;
}

} // namespace recast::fusion
