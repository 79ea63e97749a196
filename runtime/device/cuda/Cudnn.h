// cuDNN's convolutions, as far as they are used; opened at run time. Names and numbers are those of cudnn_ops.h and
// cudnn_cnn.h (cuDNN 9), sources of rules the pages of its API reference of that name.
#pragma once
#include "runtime/device/cuda/Driver.h"
#include "runtime/kernels/cuda/table/Convolution.h"
#include <map>
#include <memory>

namespace recast::device {

/// cudnnConvolutionFwdAlgoPerf_t, ...BwdDataAlgoPerf_t and ...BwdFilterAlgoPerf_t, which have the same members.
struct ConvolutionAlgorithm {
  int algorithm;
  int status;
  float milliseconds;
  size_t workspaceBytes;
  int determinism;
  int math;
  int reserved[3];
};

/// One direction. The first two tensors are x and w, w and dy, or x and dy; the result is y, dx or dw.
struct ConvolutionFunctions {
  int (*algorithms)(CudaHandle handle, CudaHandle first, CudaHandle second, CudaHandle convolution, CudaHandle result,
                    int wanted, int *found, ConvolutionAlgorithm *results);
  int (*workspaceSize)(CudaHandle handle, CudaHandle first, CudaHandle second, CudaHandle convolution,
                       CudaHandle result, int algorithm, size_t *bytes);
  int (*run)(CudaHandle handle, const void *alpha, CudaHandle firstDesc, const void *first, CudaHandle secondDesc,
             const void *second, CudaHandle convolution, int algorithm, void *workspace, size_t workspaceBytes,
             const void *beta, CudaHandle resultDesc, void *result);
};

/// Functions return a cudnnStatus_t: 0 is success.
struct CudnnFunctions {
  const char *(*getErrorString)(int status);
  int (*create)(CudaHandle *handle);
  int (*setStream)(CudaHandle handle, CudaHandle stream);
  int (*tensorCreate)(CudaHandle *tensor);
  int (*tensorSet)(CudaHandle tensor, int type, int rank, const int *dims, const int *strides);
  int (*filterCreate)(CudaHandle *filter);
  int (*filterSet)(CudaHandle filter, int type, int format, int rank, const int *dims);
  int (*convolutionCreate)(CudaHandle *convolution);
  int (*convolutionSet)(CudaHandle convolution, int axes, const int *pads, const int *strides, const int *dilations,
                        int mode, int computeType);
  int (*groupsSet)(CudaHandle convolution, int groups);
  int (*mathSet)(CudaHandle convolution, int math);
  ConvolutionFunctions directions[3]; ///< By cuda::ConvolutionResult.
};
/// As RECAST_DRIVER_FUNCTIONS; those of a direction are named after it.
#define RECAST_CUDNN_FUNCTIONS(Use, Table)                                                                             \
  Use(Table, getErrorString, cudnnGetErrorString) Use(Table, create, cudnnCreate)                                      \
      Use(Table, setStream, cudnnSetStream) Use(Table, tensorCreate, cudnnCreateTensorDescriptor)                      \
          Use(Table, tensorSet, cudnnSetTensorNdDescriptor) Use(Table, filterCreate, cudnnCreateFilterDescriptor)      \
              Use(Table, filterSet, cudnnSetFilterNdDescriptor)                                                        \
                  Use(Table, convolutionCreate, cudnnCreateConvolutionDescriptor)                                      \
                      Use(Table, convolutionSet, cudnnSetConvolutionNdDescriptor)                                      \
                          Use(Table, groupsSet, cudnnSetConvolutionGroupCount)                                         \
                              Use(Table, mathSet, cudnnSetConvolutionMathType)
#define RECAST_CUDNN_DIRECTION(Use, Table, Direction)                                                                  \
  Use(Table, algorithms, cudnnGetConvolution##Direction##Algorithm_v7)                                                 \
      Use(Table, workspaceSize, cudnnGetConvolution##Direction##WorkspaceSize)                                         \
          Use(Table, run, cudnnConvolution##Direction)
/// Opens libcudnn.so.9.
Result<CudnnFunctions> openCudnn();

class Cudnn {
public:
  static Result<std::unique_ptr<Cudnn>> create(const CudnnFunctions &functions);
  /// Chooses the algorithm of a call, once, and says which; where the call has its addresses it runs, and its result is
  /// written over. Only those whose results do not depend on timing, and which
  /// sum products of the operands as they are: for these the error of a sum in f32 holds. Transforms (FFT, Winograd)
  /// have a larger one. Precondition here and below: brokenRule(call) is "".
  Result<std::string> prepare(const cuda::ConvolutionCall &call);
  /// Of a call that was prepared.
  Status convolve(const cuda::ConvolutionCall &call, const std::string &step, CudaHandle stream);

private:
  /// A call made ready, without addresses.
  struct Prepared {
    CudaHandle first = nullptr, second = nullptr, result = nullptr, convolution = nullptr;
    int algorithm = 0;
    std::string choice;
  };
  explicit Cudnn(const CudnnFunctions &functions) : dnn(functions) {}
  Status check(int status, const char *call) const;
  Status describe(const cuda::ConvolutionCall &call, Prepared &prepared) const;
  Status choose(const cuda::ConvolutionCall &call, Prepared &prepared) const;
  int run(const cuda::ConvolutionCall &call, const Prepared &prepared) const;

  CudnnFunctions dnn;
  CudaHandle handle = nullptr;
  std::map<std::string, Prepared> calls; ///< By their sizes and types.
};

} // namespace recast::device
