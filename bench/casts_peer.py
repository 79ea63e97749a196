"""Runs a converter of another project: casts_peer.py modelopt|converter REQUEST.json, in bench/casts' environment.

The request holds `model`, `out`, `keep` (names of nodes that stay in fp32; null: the converter's own choice) and `data`
(an .npz with values for the inputs).
"""
import json
import re
import sys

import onnx


def modelopt(request):
    import modelopt.onnx.autocast as autocast
    keep = request["keep"]
    return autocast.convert_to_mixed_precision(
        request["model"], low_precision_type="fp16", keep_io_types=True, calibration_data=request["data"],
        nodes_to_exclude=None if keep is None else [f"^{re.escape(name)}$" for name in keep])


def converter(request):
    from onnxconverter_common import float16
    return float16.convert_float_to_float16(onnx.load(request["model"]), keep_io_types=True,
                                            node_block_list=request["keep"])


def main():
    request = json.loads(open(sys.argv[2]).read())
    model = {"modelopt": modelopt, "converter": converter}[sys.argv[1]](request)
    onnx.save(model, request["out"])


if __name__ == "__main__":
    main()
