"""ONNX Runtime Training's own graphs under recast-inspect --verify: their gradients and updates are found, and they
verify clean; with a number changed or an operator put in between they do not.
"""
import json

import kit
import onnx
from onnx import TensorProto, helper


def verify(test, model):
    path, facts = test.temp / "model.onnx", test.temp / "facts.json"
    facts.unlink(missing_ok=True)
    onnx.save(model, path)
    done = test.tool("recast-inspect", path, "--verify", f"--json={facts}", ok=False)
    return done.returncode, json.loads(facts.read_text()) if facts.exists() else {"findings": []}


def rules(facts):
    return {finding["rule"] for finding in facts["findings"]}


def node(model, op_type):
    return next(n for n in model.graph.node if n.op_type == op_type)


def main():
    test = kit.Test(__doc__)
    folder = test.corpus / "ort"

    training = kit.load_model(folder / "training_model.onnx")
    buffers = sum(n.op_type == "InPlaceAccumulatorV2" for n in training.graph.node)
    code, facts = verify(test, training)
    test.check(code == 0 and len(facts["gradients"]) == buffers, f"training_model: clean, {buffers} gradients")

    code, facts = verify(test, kit.load_model(folder / "bloom3_training.onnx"))
    bloom = kit.load_model(folder / "bloom3_training.onnx")
    test.check(code == 0 and len(facts["gradients"]) == len(bloom.graph.output),
               f"bloom3_training: clean, {len(bloom.graph.output)} gradients")

    code, facts = verify(test, kit.load_model(folder / "adamw.onnx"))
    test.check(code == 0 and facts["parameters"] == ["params"] and len(facts["moments"]) == 2,
               "adamw: clean, the parameters and both moments")

    code, facts = verify(test, kit.load_model(folder / "eval_model.onnx"))
    test.check(code == 0 and not facts["parameters"] and not facts["gradients"], "eval_model: trains nothing")

    # Labels left out: each run divides by its own count, and the buffer adds up the means.
    for op_type in ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"):
        node(training, op_type).attribute.append(helper.make_attribute("ignore_index", -100))
    code, facts = verify(test, training)
    chains = [finding["chain"] for finding in facts["findings"]]
    test.check(code == 1 and rules(facts) == {"mean-of-means"}, "training_model with an ignore index: mean-of-means")
    test.check(len(chains) == buffers and all(any("SoftmaxCrossEntropyLossGrad" in link for link in chain)
                                              for chain in chains),
               "each chain leads from the gradient of the loss to a buffer")

    # A buffer in f16.
    training = kit.load_model(folder / "training_model.onnx")
    accumulator = node(training, "InPlaceAccumulatorV2")
    buffer = next(i for i in training.graph.input if i.name == accumulator.input[0])
    buffer.type.tensor_type.elem_type = TensorProto.FLOAT16
    code, facts = verify(test, training)
    test.check(code == 1 and rules(facts) == {"low-precision-accumulator"} and len(facts["findings"]) == 1,
               "training_model with one buffer in f16: low-precision-accumulator, once")
    test.finish()


if __name__ == "__main__":
    main()
