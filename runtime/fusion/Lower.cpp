#include "runtime/fusion/Lower.h"
#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVMPass.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Conversion/UBToLLVM/UBToLLVM.h"
#include "mlir/Conversion/VectorToLLVM/ConvertVectorToLLVMPass.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/UB/IR/UBOps.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include <mutex>

using namespace mlir;
namespace recast::fusion {

namespace {

const DialectRegistry &registry() {
  static const DialectRegistry known = [] {
    DialectRegistry dialects;
    dialects.insert<arith::ArithDialect, cf::ControlFlowDialect, func::FuncDialect, LLVM::LLVMDialect,
                    math::MathDialect, scf::SCFDialect, ub::UBDialect, vector::VectorDialect>();
    registerBuiltinDialectTranslation(dialects);
    registerLLVMDialectTranslation(dialects);
    return dialects;
  }();
  return known;
}

} // namespace

std::unique_ptr<llvm::TargetMachine> createTarget(const std::string &name, const std::string &cpu,
                                                  const std::string &features) {
  static std::once_flag isReady;
  std::call_once(isReady, [] {
    llvm::InitializeAllTargetInfos();
    llvm::InitializeAllTargets();
    llvm::InitializeAllTargetMCs();
    llvm::InitializeAllAsmPrinters();
  });
  std::string error;
  llvm::Triple triple(name);
  const llvm::Target *target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target)
    return nullptr;
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(
      triple, cpu, features, options, llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Default));
}

Lowering::Lowering(std::unique_ptr<llvm::TargetMachine> target)
    : context(registry(), MLIRContext::Threading::DISABLED), target(std::move(target)) {
  context.loadAllAvailableDialects();
  passes.emplace(&context);
  passes->addPass(createSCFToControlFlowPass());
  passes->addPass(createConvertVectorToLLVMPass());
  passes->addPass(createConvertMathToLLVMPass());
  passes->addPass(createArithToLLVMConversionPass());
  passes->addPass(createConvertFuncToLLVMPass());
  passes->addPass(createConvertControlFlowToLLVMPass());
  passes->addPass(createUBToLLVMConversionPass());
  passes->addPass(createReconcileUnrealizedCastsPass());
}

Result<std::string> Lowering::lower(const std::function<void(ModuleOp)> &emit, llvm::CodeGenFileType file,
                                    const std::function<void(llvm::Module &)> &complete) {
  std::string problem;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    problem = diagnostic.str();
    return success();
  });
  auto error = [&] {
    return Status::error("generating code for a region failed" + (problem.empty() ? "" : ": " + problem));
  };
  OwningOpRef<ModuleOp> module(ModuleOp::create(UnknownLoc::get(&context)));
  emit(*module);
  if (!target || failed(passes->run(*module)))
    return error();
  llvm::LLVMContext llvmContext;
  std::unique_ptr<llvm::Module> code = translateModuleToLLVMIR(*module, llvmContext);
  if (!code)
    return error();
  code->setTargetTriple(target->getTargetTriple());
  code->setDataLayout(target->createDataLayout());
  if (complete)
    complete(*code);
  optimize(*code);
  if (finish)
    finish(*code);
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream out(bytes);
  llvm::legacy::PassManager emitter;
  if (target->addPassesToEmitFile(emitter, out, nullptr, file))
    return error();
  emitter.run(*code);
  return std::string(bytes.begin(), bytes.end());
}

void Lowering::optimize(llvm::Module &module) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager calls;
  llvm::ModuleAnalysisManager modules;
  llvm::PipelineTuningOptions tuning;
  tuning.LoopVectorization = tuning.SLPVectorization = false; // Loops are over vectors already.
  llvm::PassBuilder builder(target.get(), tuning);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(calls);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, calls, modules);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O1).run(module, modules);
}

} // namespace recast::fusion
