package mcphttp

import (
	tools "sandbox.internal/clients/mcp"
	"sandbox.internal/openapi/serve"
)

// RegisterWithin is Register with another bound on what calls hold of images, in bytes.
func RegisterWithin(server *serve.Server, bytes int64) {
	register(server, "test", nil, tools.NewImageQuota(bytes))
}
