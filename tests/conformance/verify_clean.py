"""What recast-opt writes verifies clean: each form of step of a torch model, and the same step when nothing says what is
what (functions inlined to standard operators, metadata gone, every value called by a number), with the same roles found.
"""
import json

import kit
import onnx
import onnx.inliner

FORMS = {
    "f32, AdamW": ["--optimizer=adamw"],
    "bf16, norm clip, Adam": ["--precision=bf16", "--optimizer=adam", "--weight-decay=0.1", "--clip-grad-norm=1"],
    "f16, norm clip, AdamW": ["--precision=f16", "--clip-grad-norm=1"],
    "f16, fixed scale, value clip, SGD": ["--precision=f16", "--loss-scale=1024", "--clip-grad-value=0.5",
                                          "--optimizer=sgd", "--momentum=0.9", "--nesterov"],
    "f16, three micro-batches": ["--precision=f16", "--clip-grad-norm=1", "--accumulate=3"],
}


def anonymous(model):
    """The same graph in standard operators, without metadata, values and nodes called by numbers."""
    model = onnx.inliner.inline_local_functions(model)
    del model.metadata_props[:]
    numbers = {"": ""}

    def rename(graph):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = numbers.setdefault(value.name, f"v{len(numbers)}")
        for i, node in enumerate(graph.node):
            node.name = f"n{i}"
            for names in (node.input, node.output):
                names[:] = [numbers.setdefault(name, f"v{len(numbers)}") for name in names]
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    rename(attribute.g)

    rename(model.graph)
    return model, numbers


def verify(test, path):
    facts = test.temp / "facts.json"
    facts.unlink(missing_ok=True)
    done = test.tool("recast-inspect", path, "--verify", f"--json={facts}", ok=False)
    return done, json.loads(facts.read_text()) if facts.exists() else None


def main():
    test = kit.Test(__doc__, "MODEL")
    kit.reference(test)
    step, bare = test.temp / "step.onnx", test.temp / "bare.onnx"
    for form, flags in FORMS.items():
        test.tool("recast-opt", test.model, *flags, "-o", step)
        done, facts = verify(test, step)
        if not test.check(done.returncode == 0 and facts, f"{form}: clean" + (done.stderr and f"; {done.stderr[:600]}")):
            continue
        model = kit.load_model(step)
        said = json.loads(kit.metadata(model)["recast.parameters"])
        test.check(sorted(facts["parameters"]) == sorted(said), f"{form}: all {len(said)} parameters are found")
        renamed, numbers = anonymous(model)
        onnx.save(renamed, bare)
        done, found = verify(test, bare)
        if not test.check(done.returncode == 0 and found,
                          f"{form}, inlined and without names: clean" + (done.stderr and f"; {done.stderr[:600]}")):
            continue
        for role in ("parameters", "moments", "loss_scale"):
            want = sorted(numbers[name] for name in facts[role])
            test.check(sorted(found[role]) == want, f"{form}, inlined and without names: the same {role}"
                       + ("" if sorted(found[role]) == want else f"; {sorted(found[role])} instead of {want}"))
    test.finish()


if __name__ == "__main__":
    main()
