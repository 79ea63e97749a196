#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/kernels/cuda/table/Convolution.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include <algorithm>

namespace recast::cuda {

std::span<const Row> rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> all;
    for (std::span<const Row> family :
         {copyRows(), indexingRows(), scalingRows(), fp8Rows(), lossRows(), windowRows(), productRows(),
          fp8ProductRows(), collectiveRows(), orderRows(), reduceRows(), arithmeticRows()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  return all;
}

std::string_view libraryOf(const Program &program) {
  auto has = [&](std::string_view kernel) {
    return std::ranges::any_of(program.launches, [&](const Launch &launch) { return launch.kernel == kernel; });
  };
  return has(kMatmul) ? "cublaslt" : has(kConvolution) ? "cudnn" : "cuda";
}

const Row *findRow(const StepSpec &spec) {
  auto row = std::ranges::find_if(rows(), [&](const Row &row) {
    return row.op == spec.op && row.domain == spec.domain && row.sinceFirst <= spec.version &&
           spec.version <= row.sinceLast;
  });
  return row == rows().end() ? nullptr : &*row;
}

bool compile(const StepSpec &spec, Program &program, std::string &refusal) {
  program = Program();
  // Nothing is computed where nothing is written.
  if (std::ranges::all_of(spec.outputs, [](const TensorType &type) { return !type.present() || type.elems() == 0; }))
    return true;
  const Row *row = findRow(spec);
  if (!row) {
    refusal = "no kernel for " + (spec.domain.empty() ? "" : spec.domain + ".") + spec.op + " version " +
              std::to_string(spec.version);
    return false;
  }
  for (const std::vector<TensorType> *types : {&spec.inputs, &spec.outputs})
    for (const TensorType &type : *types)
      if (type.dtype == DType::String) {
        refusal = "string tensors are not supported";
        return false;
      }
  refusal = row->compile(spec, program);
  return refusal.empty();
}

bool constantInts(const StepSpec &spec, size_t i, std::vector<int64_t> &values) {
  if (i >= spec.constants.size() || !spec.constants[i].data)
    return false;
  const TensorRef &tensor = spec.constants[i];
  for (int64_t k = 0; k < tensor.elems(); ++k)
    switch (tensor.dtype) {
    case DType::I64:
      values.push_back(tensor.as<int64_t>()[k]);
      break;
    case DType::I32:
      values.push_back(tensor.as<int32_t>()[k]);
      break;
    case DType::Bool:
      values.push_back(tensor.as<uint8_t>()[k]);
      break;
    default:
      return false;
    }
  return true;
}

} // namespace recast::cuda
