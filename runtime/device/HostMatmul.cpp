#include "runtime/device/HostMatmul.h"

namespace recast::device {
namespace {

template <typename Body> void dispatchOperand(DType type, Body &&body) {
  if (isFloat8(type))
    dispatchFloat8(type, body);
  else
    dispatchFloat(type, body);
}

/// The scale of an element, where cuBLAS's documentation ("Narrow Precision Data Types Usage") says that it lies.
double scaleAt(const void *scale, cuda::ScaleMode mode, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  if (!scale)
    return 1;
  auto *f32 = static_cast<const float *>(scale);
  switch (mode) {
  case cuda::ScaleMode::Scalar:
    return *f32;
  case cuda::ScaleMode::OuterVector:
    return f32[row];
  case cuda::ScaleMode::Vector128:
    return f32[column / 128 * rows + row];
  case cuda::ScaleMode::Block128:
    return f32[row / 128 * ((columns + 511) / 512 * 4) + column / 128];
  case cuda::ScaleMode::Vector32E8M0: {
    int64_t block = column / 32, tilesAcross = (columns + 127) / 128;
    int64_t tile = row / 128 * tilesAcross + block / 4;
    return static_cast<const Float8E8M0 *>(scale)[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4];
  }
  }
  return 1;
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
                sum += x * scaleAt(args.scaleA, args.scaleModeA, i, l, args.m, args.k) * y *
                       scaleAt(args.scaleB, args.scaleModeB, j, l, args.n, args.k);
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
