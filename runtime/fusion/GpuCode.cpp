#include "runtime/fusion/GpuCode.h"
#include "runtime/fusion/Cache.h"
#include "runtime/fusion/Lower.h"
#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/Linker/Linker.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/Transforms/Instrumentation/SanitizerCoverage.h"
#include <map>

namespace recast::fusion {

namespace {

/// Part of every name: a change of what is generated must change it.
constexpr std::string_view kGenerator = "gpu " RECAST_GENERATOR " ";
constexpr unsigned kSharedSpace = 3;

/// Gives a declared function a body of one expression; nothing where it is not called.
void define(llvm::Module &module, llvm::StringRef name,
            llvm::function_ref<llvm::Value *(llvm::IRBuilder<> &, llvm::Function &)> body) {
  llvm::Function *function = module.getFunction(name);
  if (!function)
    return;
  function->setLinkage(llvm::GlobalValue::InternalLinkage);
  function->addFnAttr(llvm::Attribute::AlwaysInline);
  function->addFnAttr(llvm::Attribute::Convergent); // Until it is inlined, nothing may put a barrier under a condition.
  llvm::IRBuilder<> b(llvm::BasicBlock::Create(module.getContext(), "", function));
  llvm::Value *result = body(b, *function);
  if (result)
    b.CreateRet(result);
  else
    b.CreateRetVoid();
}

/// What the device answers the names of gpu_names with.
void defineDevice(llvm::Module &module) {
  using namespace llvm;
  auto reg = [&](StringRef name, Intrinsic::ID id) {
    define(module, name, [&](IRBuilder<> &b, Function &function) -> llvm::Value * {
      return b.CreateZExt(b.CreateIntrinsic(id, {}), function.getReturnType());
    });
  };
  reg(gpu_names::kThread, Intrinsic::nvvm_read_ptx_sreg_tid_x);
  reg(gpu_names::kBlock, Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
  reg(gpu_names::kBlocks, Intrinsic::nvvm_read_ptx_sreg_nctaid_x);
  define(module, gpu_names::kSyncThreads, [&](IRBuilder<> &b, Function &) -> llvm::Value * {
    b.CreateIntrinsic(Intrinsic::nvvm_barrier_cta_sync_aligned_all, {b.getInt32(0)});
    return nullptr;
  });
  define(module, gpu_names::kSyncWarp, [&](IRBuilder<> &b, Function &) -> llvm::Value * {
    b.CreateIntrinsic(Intrinsic::nvvm_bar_warp_sync, {b.getInt32(~0u)});
    return nullptr;
  });
  define(module, gpu_names::kShuffleXor, [&](IRBuilder<> &b, Function &function) -> llvm::Value * {
    return b.CreateIntrinsic(Intrinsic::nvvm_shfl_sync_bfly_i32,
                             {b.getInt32(~0u), function.getArg(0), function.getArg(1), b.getInt32(31)});
  });
  define(module, gpu_names::kShared, [&](IRBuilder<> &b, Function &) -> llvm::Value * {
    auto *type = ArrayType::get(b.getInt8Ty(), kGpuSharedBytes);
    auto *block = new GlobalVariable(module, type, false, GlobalValue::InternalLinkage, UndefValue::get(type), "block",
                                     nullptr, GlobalValue::NotThreadLocal, kSharedSpace);
    block->setAlignment(Align(16));
    return b.CreateAddrSpaceCast(block, b.getPtrTy());
  });
}

/// Functions of f64 that the CPU's code takes from C's library: the device's own
/// (runtime/kernels/cuda/source/Wide.cpp).
void renameWide(llvm::Module &module) {
  for (const char *name : {"exp", "log", "tanh", "erf", "sin", "cos", "expm1", "log1p", "pow"})
    if (llvm::Function *function = module.getFunction(name); function && function->isDeclaration())
      function->setName(std::string(gpu_names::kWidePrefix) + name);
}

/// Defines those of them that there are; "", or the name of one that there is not.
std::string linkWide(llvm::Module &module) {
  auto buffer = llvm::MemoryBufferRef(wideBitcode(), "wide");
  llvm::Expected<std::unique_ptr<llvm::Module>> wide = llvm::parseBitcodeFile(buffer, module.getContext());
  if (!wide) {
    llvm::consumeError(wide.takeError());
    return "everything";
  }
  (*wide)->setDataLayout(module.getDataLayout());
  (*wide)->setTargetTriple(module.getTargetTriple());
  llvm::Linker::linkModules(module, std::move(*wide), llvm::Linker::LinkOnlyNeeded);
  for (llvm::Function &function : module) {
    if (!function.getName().starts_with(gpu_names::kWidePrefix))
      continue;
    if (function.isDeclaration())
      return function.getName().drop_front(std::strlen(gpu_names::kWidePrefix)).str();
    function.setLinkage(llvm::GlobalValue::InternalLinkage);
  }
  return "";
}

std::vector<llvm::Function *> entriesOf(llvm::Module &module) {
  std::vector<llvm::Function *> entries;
  for (llvm::Function &function : module)
    if (!function.isDeclaration())
      entries.push_back(&function);
  return entries;
}

/// `<name>(const void *arguments)` calls the kernel with the addresses that lie there.
void addHostEntry(llvm::Function &kernel) {
  llvm::Module &module = *kernel.getParent();
  std::string name = kernel.getName().str();
  kernel.setName(name + "_body");
  kernel.setLinkage(llvm::GlobalValue::InternalLinkage);
  llvm::IRBuilder<> b(module.getContext());
  auto *entry = llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy()}, false),
                                       llvm::GlobalValue::ExternalLinkage, name, module);
  b.SetInsertPoint(llvm::BasicBlock::Create(module.getContext(), "", entry));
  llvm::SmallVector<llvm::Value *> args;
  for (unsigned i = 0; i < kernel.arg_size(); ++i)
    args.push_back(b.CreateLoad(b.getPtrTy(), b.CreateConstGEP1_32(b.getPtrTy(), entry->getArg(0), i)));
  b.CreateCall(&kernel, args);
  b.CreateRetVoid();
}

std::map<std::string, const Kernel *> distinctOf(std::span<const Kernel> kernels) {
  std::map<std::string, const Kernel *> distinct;
  for (const Kernel &kernel : kernels)
    distinct[kernel.name] = &kernel;
  return distinct;
}

std::string cacheName(const std::map<std::string, const Kernel *> &kernels, std::string_view kind) {
  std::string names(kGenerator);
  names += kind;
  for (const auto &[name, kernel] : kernels)
    names += name;
  return std::string(kind) + hashOf(names) + hashOf(names + "2");
}

} // namespace

Result<std::string> compilePtx(std::span<const Kernel> kernels) {
  auto distinct = distinctOf(kernels);
  Cache cache;
  std::string name = cacheName(distinct, "ptx") + ".ptx";
  if (auto known = cache.read(name))
    return std::move(*known);
  Lowering lowering(createTarget("nvptx64-nvidia-cuda", kPtxArchitecture, "+ptx70"));
  auto emitAll = [&](mlir::ModuleOp module) {
    for (const auto &[name, kernel] : distinct)
      emitGpu(module, name, *kernel->region, *kernel->program);
  };
  std::string missing;
  auto complete = [&](llvm::Module &module) {
    for (llvm::Function *entry : entriesOf(module)) {
      entry->setCallingConv(llvm::CallingConv::PTX_Kernel);
      entry->addFnAttr("nvvm.maxntid", std::to_string(kGpuThreads));
    }
    renameWide(module);
    missing = linkWide(module);
    defineDevice(module);
  };
  Result<std::string> ptx = lowering.lower(emitAll, llvm::CodeGenFileType::AssemblyFile, complete);
  if (!missing.empty())
    return Status::error("a GPU has no function '" + missing + "' of f64");
  if (ptx)
    cache.write(name, *ptx);
  return ptx;
}

Result<std::string> compileEmulated(std::span<const Kernel> kernels) {
  auto distinct = distinctOf(kernels);
  Lowering lowering(createTarget(llvm::sys::getProcessTriple(), "x86-64-v3", ""));
  auto emitAll = [&](mlir::ModuleOp module) {
    for (const auto &[name, kernel] : distinct)
      emitGpu(module, name, *kernel->region, *kernel->program);
  };
  auto complete = [](llvm::Module &module) {
    renameWide(module);
    for (llvm::Function *entry : entriesOf(module))
      addHostEntry(*entry);
  };
  // After what would join or drop accesses.
  lowering.finish = [](llvm::Module &module) {
    llvm::SanitizerCoverageOptions options;
    options.CoverageType = llvm::SanitizerCoverageOptions::SCK_Function;
    options.TraceLoads = options.TraceStores = true;
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager calls;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder builder;
    builder.registerModuleAnalyses(modules);
    builder.registerCGSCCAnalyses(calls);
    builder.registerFunctionAnalyses(functions);
    builder.registerLoopAnalyses(loops);
    builder.crossRegisterProxies(loops, functions, calls, modules);
    llvm::SanitizerCoveragePass(options).run(module, modules);
  };
  Result<std::string> object = lowering.lower(emitAll, llvm::CodeGenFileType::ObjectFile, complete);
  return object ? linkObjects({*object}) : object;
}

} // namespace recast::fusion
