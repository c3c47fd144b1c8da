"""Writes golden outputs of PEFT's LoRA and (IA)³ on a torch DeBERTa to ``deberta_lora.npz`` next to this script.

Run this script by hand, in the environment described in ``make_encoder.py``, with ``peft==0.21.2``:

    /tmp/golden/bin/python tests/golden/make_deberta_lora.py

The trunk and the batch are in `encoder_deberta_v2.npz`. The file holds `lora/<layer>/<module>/{A,B}`,
`ia3/<layer>/<module>`, and the hidden states `lora/hidden` and `ia3/hidden`. The modules are `query`, `key` and
`value`. DeBERTa applies its query and key projections to the relative positions too.
"""

import re

import numpy as np
import torch
from make_encoder import LIMIT, MODELS, MORE_LENGTHS
from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model
from reference import model_inputs, padded_batch, randomize, run_checked, save

MODULES = ("query", "key", "value")
NAMES = {"lora_A.default.weight": "/A", "lora_B.default.weight": "/B", "ia3_l.default": ""}


def main() -> None:
    torch.set_num_threads(1)
    targets = [f"{module}_proj" for module in MODULES]
    lora = LoraConfig(r=2, lora_alpha=3, target_modules=targets)
    save(
        "deberta_lora",
        {**golden("lora", lora), **golden("ia3", IA3Config(target_modules=targets, feedforward_modules=[]))},
    )


def golden(name: str, config: PeftConfig) -> dict[str, np.ndarray]:
    _, make = MODELS["deberta_v2"]
    model = make()
    randomize(model, list(MODELS).index("deberta_v2"))
    peft = get_peft_model(model, config)
    arrays = {}
    for index, (path, parameter) in enumerate(peft.named_parameters()):
        if match := re.search(r"layer\.(\d+)\.attention\.self\.(\w+)_proj\.(?!base_layer)(\w.*)", path):
            noise = np.random.default_rng(index).standard_normal(parameter.shape).astype(np.float16)
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(0.3 * noise + (name == "ia3")))
            arrays[f"{name}/{match[1]}/{match[2]}{NAMES[match[3]]}"] = parameter.detach().numpy()
    inputs = model_inputs(padded_batch(0, 0, model.config.vocab_size, MORE_LENGTHS))
    del inputs["token_type_ids"]
    computed = run_checked(peft, lambda: {f"{name}/hidden": peft(**inputs).last_hidden_state.numpy()}, LIMIT)
    return {**{path: array.copy() for path, array in arrays.items()}, **computed}


if __name__ == "__main__":
    main()
