// A gradient that still carries the loss scale goes to unscale and nowhere else.
// RUN: not recast-opt %s --emit=forward -o %t.onnx 2>&1 | FileCheck %s
// RUN: not ls %t.onnx

// CHECK: error: {{.*}}line {{[0-9]+}}, column {{[0-9]+}}: 'train.clip_grad_norm' op operand 0 is a gradient that still carries the loss scale: unscale it first
module attributes {onnx.opsets = [["", 17]]} {
  onnx.graph attributes {info = {inputs = ["g", "max"]}} {
  ^bb0(%g: tensor<3xf32>, %max: tensor<f64>):
    %0 = train.mark_scaled(%g) : (tensor<3xf32>) -> !train.scaled<tensor<3xf32>>
    %1:2 = train.clip_grad_norm(%0, %max) : (!train.scaled<tensor<3xf32>>, tensor<f64>) -> (!train.scaled<tensor<3xf32>>, tensor<f32>)
    onnx.return %1#1 : tensor<f32>
  }
}
