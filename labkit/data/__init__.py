"""What models are trained on and judged by: Verilog problems, readers, and the pipeline that feeds a training step."""
