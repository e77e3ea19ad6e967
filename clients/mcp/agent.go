package mcp

import (
	"context"

	sandbox "sandbox.internal/clients/go"
)

// userAgent is how requests of tools name the program that sends them.
const userAgent = "sandbox-mcp"

type agentKey struct{}

// withAgent returns a context that has the name of the agent's program, where it is known.
func withAgent(ctx context.Context, request call) context.Context {
	name := ""
	if request.Session != nil {
		if params := request.Session.InitializeParams(); params != nil && params.ClientInfo != nil {
			name = params.ClientInfo.Name
			if version := params.ClientInfo.Version; name != "" && version != "" {
				name += " " + version
			}
		}
	}
	if name == "" && request.Extra != nil {
		name = request.Extra.Header.Get("User-Agent")
	}
	return context.WithValue(ctx, agentKey{}, name)
}

// named has clients name their calls as those of an agent.
func named(client func(context.Context) (*sandbox.Client, error),
) func(context.Context) (*sandbox.Client, error) {
	return func(ctx context.Context) (*sandbox.Client, error) {
		c, err := client(ctx)
		if err != nil {
			return nil, err
		}
		name := userAgent
		if agent, _ := ctx.Value(agentKey{}).(string); agent != "" {
			name += " (" + ascii(agent) + ")"
		}
		return c.WithUserAgent(name)
	}
}

// ascii returns the beginning of a text as the value of a header.
func ascii(text string) string {
	const most = 100
	text = text[:min(len(text), most)]
	clean := []byte(text)
	for i, c := range clean {
		if c < ' ' || c > '~' {
			clean[i] = '?'
		}
	}
	return string(clean)
}
