package mcp

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// withoutNulls takes arguments that are null for those that are left out, which is what models mean
// by it. A null for an argument that a tool needs is so reported as missing.
func withoutNulls(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		called, ok := request.(*mcp.CallToolRequest)
		if ok && called.Params != nil {
			called.Params.Arguments = dropNulls(called.Params.Arguments)
		}
		result, err := next(ctx, method, request)
		if answer, ok := result.(*mcp.CallToolResult); ok && answer != nil && answer.IsError {
			nameNull(answer)
		}
		return result, err
	}
}

// dropNulls returns a JSON object without the members that are null, and anything else as it is.
func dropNulls(arguments json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(arguments, &members) != nil {
		return arguments
	}
	found := members == nil && len(arguments) > 0 // the object itself is null
	for name, value := range members {
		if string(value) == "null" {
			delete(members, name)
			found = true
		}
	}
	if !found {
		return arguments
	}
	if members == nil {
		members = map[string]json.RawMessage{}
	}
	kept, err := json.Marshal(members)
	if err != nil {
		return arguments
	}
	return kept
}

// nameNull replaces what the library calls a null inside of an argument by a word that the model
// knows.
func nameNull(answer *mcp.CallToolResult) {
	for _, content := range answer.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			text.Text = strings.ReplaceAll(text.Text, "<invalid reflect.Value>", "null")
		}
	}
}
