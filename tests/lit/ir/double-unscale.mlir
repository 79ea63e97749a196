// What was unscaled once carries no loss scale any more.
// RUN: not recast-opt %s --emit=forward -o %t.onnx 2>&1 | FileCheck %s

// CHECK: error: {{.*}}line {{[0-9]+}}, column {{[0-9]+}}: 'train.unscale' op operand 0 carries no loss scale: it would be unscaled twice
module attributes {onnx.opsets = [["", 17]]} {
  onnx.graph attributes {info = {inputs = ["g", "scale"]}} {
  ^bb0(%g: tensor<3xf32>, %scale: tensor<f32>):
    %1:2 = train.unscale(%g, %scale) : (tensor<3xf32>, tensor<f32>) -> (tensor<3xf32>, tensor<i1>)
    onnx.return %1#0 : tensor<3xf32>
  }
}
