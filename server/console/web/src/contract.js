// Rules of the lifecycle contract for a create. A test compares them with openapi/lifecycle.yaml.
export const limits = {
  timeout: { minimum: 60, maximum: 86400 },
  cpu: '^[0-9]+(\\.[0-9]+)?m?$',
  memory: '^[0-9]+(\\.[0-9]+)?([KMGT]i|[kMGT])?$',
  gpu: '^([0-9]+|all)$',
  actions: ['allow', 'deny'],
};
