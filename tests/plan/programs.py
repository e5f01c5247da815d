"""Small HLO programs as XLA prints them, for what reads them."""

LOOP = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[4,8]{1,0})->f32[4,8]{1,0}}

%fused_product (param_0: bf16[256,64], param_1: bf16[64,128]) -> bf16[256,128] {
  %param_0 = bf16[256,64]{1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.1 = bf16[256,128]{1,0:T(8,128)(2,1)} convolution(%param_0, %param_1), dim_labels=bf_io->bf, metadata={op_name="jit(step)/jvp(layers)/while/body/closed_call/feed_forward/dot_general"}
}

%fused_write (param_0.1: bf16[12,256,128], param_1.1: bf16[256,128], param_2.1: s32[]) -> bf16[12,256,128] {
  %param_0.1 = bf16[12,256,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1.1 = bf16[256,128]{1,0:T(8,128)(2,1)} parameter(1)
  %bitcast.1 = bf16[1,256,128]{2,1,0:T(8,128)(2,1)} bitcast(%param_1.1)
  %param_2.1 = s32[]{:T(256)} parameter(2)
  %constant.9 = s32[]{:T(256)} constant(0)
  ROOT %dynamic-update-slice.1 = bf16[12,256,128]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%param_0.1, %bitcast.1, %param_2.1, %constant.9, %constant.9)
}

%body (carried: (s32[], bf16[256,64], bf16[64,128], bf16[12,256,128])) -> (s32[], bf16[256,64], bf16[64,128], bf16[12,256,128]) {
  %carried = (s32[]{:T(256)}, bf16[256,64]{1,0:T(8,128)(2,1)}, bf16[64,128]{1,0:T(8,128)(2,1)}, /*index=3*/bf16[12,256,128]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %counter = s32[]{:T(256)} get-tuple-element(%carried), index=0
  %x = bf16[256,64]{1,0:T(8,128)(2,1)} get-tuple-element(%carried), index=1
  %w = bf16[64,128]{1,0:T(8,128)(2,1)} get-tuple-element(%carried), index=2
  %kept = bf16[12,256,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%carried), index=3
  %product = bf16[256,128]{1,0:T(8,128)(2,1)} fusion(%x, %w), kind=kOutput, calls=%fused_product, metadata={op_name="jit(step)/jvp(layers)/while/body/closed_call/feed_forward/dot_general"}, backend_config={"window_config":{"estimated_cycles":"1000"}}
  %write = bf16[12,256,128]{2,1,0:T(8,128)(2,1)} fusion(%kept, %product, %counter), kind=kLoop, calls=%fused_write, metadata={op_name="jit(step)/jvp(layers)/while/body/dynamic_update_slice"}, backend_config={"window_config":{"estimated_cycles":"300"}}
  %one = s32[]{:T(256)} constant(1)
  %next = s32[]{:T(256)} add(%counter, %one)
  %sum = f32[1024]{0:T(1024)} all-reduce(%product), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%region, metadata={op_name="jit(step)/jvp(layers)/while/body/psum"}
  ROOT %tuple = (s32[]{:T(256)}, bf16[256,64]{1,0:T(8,128)(2,1)}, bf16[64,128]{1,0:T(8,128)(2,1)}, bf16[12,256,128]{2,1,0:T(8,128)(2,1)}) tuple(%next, %x, %w, %write)
}

%condition (carried.1: (s32[], bf16[256,64], bf16[64,128], bf16[12,256,128])) -> pred[] {
  %carried.1 = (s32[]{:T(256)}, bf16[256,64]{1,0:T(8,128)(2,1)}, bf16[64,128]{1,0:T(8,128)(2,1)}, bf16[12,256,128]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %counter.1 = s32[]{:T(256)} get-tuple-element(%carried.1), index=0
  %bound = s32[]{:T(256)} constant(12)
  ROOT %less = pred[]{:T(1024)} compare(%counter.1, %bound), direction=LT
}

ENTRY %main (p.0: bf16[256,64], p.1: bf16[64,128]) -> bf16[12,256,128] {
  %p.0 = bf16[256,64]{1,0:T(8,128)(2,1)} parameter(0)
  %p.1 = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(1)
  %zero = s32[]{:T(256)} constant(0)
  %stack = bf16[12,256,128]{2,1,0:T(8,128)(2,1)} custom-call(), custom_call_target="AllocateBuffer"
  %carried.0 = (s32[]{:T(256)}, bf16[256,64]{1,0:T(8,128)(2,1)}, bf16[64,128]{1,0:T(8,128)(2,1)}, bf16[12,256,128]{2,1,0:T(8,128)(2,1)}) tuple(%zero, %p.0, %p.1, %stack)
  %while = (s32[]{:T(256)}, bf16[256,64]{1,0:T(8,128)(2,1)}, bf16[64,128]{1,0:T(8,128)(2,1)}, bf16[12,256,128]{2,1,0:T(8,128)(2,1)}) while(%carried.0), condition=%condition, body=%body
  ROOT %result = bf16[12,256,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%while), index=3
}
"""  # noqa: E501

AHEAD = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(bf16[96,256]{1,0})->bf16[24,256]{1,0}}

ENTRY %main (p.0: bf16[96,256]) -> bf16[24,256] {
  %p.0 = bf16[96,256]{1,0:T(8,128)(2,1)} parameter(0)
  %slice-start = ((bf16[96,256]{1,0:T(8,128)(2,1)}), bf16[24,256]{1,0:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) slice-start(%p.0), slice={[0:24], [0:256]}, metadata={op_name="jit(step)/jvp(layers)/slice"}
  %slice-done = bf16[24,256]{1,0:T(8,128)(2,1)S(1)} slice-done(%slice-start)
  %copy-start = (bf16[24,256]{1,0:T(8,128)(2,1)}, bf16[24,256]{1,0:T(8,128)(2,1)S(1)}, u32[]{:S(2)}) copy-start(%slice-done), metadata={op_name="jit(step)/jvp(layers)/copy"}
  ROOT %copy-done = bf16[24,256]{1,0:T(8,128)(2,1)} copy-done(%copy-start)
}
"""  # noqa: E501
