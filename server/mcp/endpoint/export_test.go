package endpoint

import (
	"sandbox.internal/openapi/serve"
	tools "sandbox.internal/server/mcp"
)

// RegisterWithin is Register with another bound on what calls hold of images, in bytes.
func RegisterWithin(server *serve.Server, bytes int64) {
	register(server, "test", nil, tools.NewImageQuota(bytes))
}
