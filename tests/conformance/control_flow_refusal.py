"""A recurrent or control-flow operator between parameters and loss is refused by name, and nothing is written."""
import kit


def check_refusal(test, model_path, *flags):
    nodes = kit.control_flow_nodes(kit.load_model(model_path))
    output = test.temp / "refused.onnx"
    done = test.tool("recast-opt", model_path, *flags, "-o", output, ok=False)
    print("      " + "\n      ".join(done.stderr.strip().splitlines()[:8]))
    test.check(done.returncode == 1, f"exit status 1 (got {done.returncode})")
    named = [n for n in nodes if kit.mentions(done.stderr, n.op_type)
             and any(kit.mentions(done.stderr, name) for name in (n.name, *n.output) if name)]
    test.check(named, "the error names the operator and the node, one of "
               + ", ".join(f"{n.op_type} {n.name or n.output[0]}" for n in nodes[:4]))
    left = sorted(p.name for p in test.temp.iterdir())
    test.check(not left, f"nothing is written {left or ''}")


def main():
    test = kit.Test(__doc__, "MODEL")
    check_refusal(test, test.subject / "model.onnx" if test.subject.is_dir() else test.subject)
    test.finish()


if __name__ == "__main__":
    main()
