"""`import coca_train.transformers`: what `export` writes is loaded by the Auto classes of transformers, without code of
the folder. Of model_type coca_train nothing else loads it; of coca it replaces trust_remote_code=True."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from coca_train.hub.export_files.modeling_coca import CocaConfig, CocaForCausalLM, CocaModel
from coca_train.hub.installed import CocaTrainConfig, CocaTrainForCausalLM

__all__ = ["CocaConfig", "CocaForCausalLM", "CocaModel", "CocaTrainConfig", "CocaTrainForCausalLM"]

for _config, _model in ((CocaConfig, CocaForCausalLM), (CocaTrainConfig, CocaTrainForCausalLM)):
    AutoConfig.register(_config.model_type, _config)
    AutoModelForCausalLM.register(_config, _model)
AutoModel.register(CocaConfig, CocaModel)
# So that save_pretrained writes the two files again, which auto_map names.
CocaConfig.register_for_auto_class()
CocaModel.register_for_auto_class("AutoModel")
CocaForCausalLM.register_for_auto_class("AutoModelForCausalLM")
