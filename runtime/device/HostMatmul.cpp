#include "runtime/device/HostMatmul.h"

namespace recast::device {
namespace {

template <typename Body> void dispatchOperand(DType type, Body &&body) {
  if (isFloat8(type))
    dispatchFloat8(type, body);
  else
    dispatchFloat(type, body);
}

double scaleAt(const void *scale, cuda::ScaleMode mode, int64_t row, int64_t column, int64_t columns) {
  if (!scale)
    return 1;
  if (mode == cuda::ScaleMode::Scalar)
    return *static_cast<const float *>(scale);
  int64_t blocks = (columns + 31) / 32;
  return static_cast<const Float8E8M0 *>(scale)[row * blocks + column / 32];
}

} // namespace

void hostMatmul(const cuda::MatmulArgs &args) {
  dispatchOperand(args.typeA, [&]<typename A>() {
    dispatchOperand(args.typeB, [&]<typename B>() {
      dispatchFloat(args.typeD, [&]<typename D>() {
        for (int64_t batch = 0; batch < args.batch; ++batch) {
          const A *a = static_cast<const A *>(args.a) + batch * args.strideA;
          const B *b = static_cast<const B *>(args.b) + batch * args.strideB;
          D *d = static_cast<D *>(args.d) + batch * args.strideD;
          for (int64_t i = 0; i < args.m; ++i)
            for (int64_t j = 0; j < args.n; ++j) {
              double sum = 0;
              for (int64_t l = 0; l < args.k; ++l) {
                double x = static_cast<double>(a[args.transA ? l * args.pitchA + i : i * args.pitchA + l]);
                double y = static_cast<double>(b[args.transB ? j * args.pitchB + l : l * args.pitchB + j]);
                sum += x * scaleAt(args.scaleA, args.scaleMode, i, l, args.k) * y *
                       scaleAt(args.scaleB, args.scaleMode, j, l, args.k);
              }
              D &to = d[i * args.pitchD + j];
              double bias = args.bias ? static_cast<double>(static_cast<const D *>(args.bias)[j]) : 0;
              double before = args.beta != 0 ? args.beta * static_cast<double>(to) : 0;
              to = D(args.alpha * sum + before + bias);
            }
        }
      });
    });
  });
}

} // namespace recast::device
