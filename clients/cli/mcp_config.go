package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	sandbox "sandbox.internal/clients/go"
)

// mcpClient is a program that speaks the Model Context Protocol, and how it is configured.
type mcpClient struct {
	file     string
	variable string // a format: how the file refers to a variable of the environment
	write    func(mcpServer) (string, error)
}

var mcpClients = map[string]mcpClient{
	"claude": {".mcp.json", "${%s}", mcpServers},
	"cursor": {".cursor/mcp.json", "${env:%s}", mcpServers},
	"vscode": {".vscode/mcp.json", "${input:sandbox-key}", vscodeServers},
	"codex":  {"~/.codex/config.toml", "%s", codexServers},
}

// mcpServer is an entry of such a configuration, of one of two kinds: a URL, or a command.
type mcpServer struct {
	Type    string            `json:"type"` // http or stdio
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

func mcpConfigCommand(t *tool) *cobra.Command {
	var client, transport string
	names := slices.Sorted(maps.Keys(mcpClients))
	command := &cobra.Command{
		Use:   "config [flags]",
		Short: "Print what to paste into the configuration of an agent",
		Long: "Print what to paste into the configuration of an agent, without your key.\n\n" +
			"With a service that login has saved, the agent starts `sandbox mcp`, which has\n" +
			"the key. Otherwise the agent takes the key from $" + sandbox.KeyVariable + " (VS Code asks\n" +
			"for it) and sends it to /mcp of the service.",
		Example: "  sandbox mcp config --for claude >.mcp.json\n" +
			"  sandbox mcp config --for codex --transport stdio",
		Args: arguments(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			to, ok := mcpClients[client]
			if !ok {
				return usageErrorf("for: must be one of %s, not %q", strings.Join(names, ", "), client)
			}
			server, err := t.mcpServer(to, transport)
			if err != nil {
				return err
			}
			text, err := to.write(server)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(t.Stderr, "The file is %s.\n", to.file)
			_, err = fmt.Fprint(t.Stdout, text)
			return err
		},
	}
	command.Flags().StringVar(&client, "for", "", "the `AGENT`: "+strings.Join(names, ", "))
	command.Flags().StringVar(&transport, "transport", "",
		"`KIND`: http or stdio; else stdio for a service that login has saved")
	_ = command.RegisterFlagCompletionFunc("for",
		cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	_ = command.RegisterFlagCompletionFunc("transport",
		cobra.FixedCompletions([]string{"http", "stdio"}, cobra.ShellCompDirectiveNoFileComp))
	return command
}

// mcpServer returns the entry for the service that the command line names.
func (t *tool) mcpServer(client mcpClient, transport string) (mcpServer, error) {
	to, err := t.target.resolve(t.Env)
	if err != nil {
		return mcpServer{}, err
	}
	saved, err := loadContexts(t.Env)
	if err != nil {
		return mcpServer{}, err
	}
	name := ""
	for _, known := range saved.names() {
		if saved.Contexts[known] == to && (name == "" || known == saved.Current) {
			name = known
		}
	}
	if transport == "" {
		transport = "http"
		if name != "" {
			transport = "stdio"
		}
	}
	key := map[string]string{}
	reference := client.variable
	if strings.Contains(reference, "%s") {
		reference = fmt.Sprintf(reference, sandbox.KeyVariable)
	}
	switch transport {
	case "http":
		if to.APIKey != "" {
			key[sandbox.KeyHeader] = reference
		}
		return mcpServer{Type: transport, URL: strings.TrimRight(to.URL, "/") + "/mcp", Headers: key}, nil
	case "stdio":
		server := mcpServer{Type: transport, Command: "sandbox", Args: []string{"mcp"}, Env: key}
		if name != "" {
			server.Args = append(server.Args, "--context", name)
			return server, nil
		}
		server.Args = append(server.Args, "--url", to.URL)
		if to.APIKey != "" {
			key[sandbox.KeyVariable] = reference
		}
		return server, nil
	}
	return mcpServer{}, usageErrorf("transport: must be http or stdio, not %q", transport)
}

// mcpServers writes what most clients read.
func mcpServers(server mcpServer) (string, error) {
	return indented(map[string]any{"mcpServers": map[string]mcpServer{"sandbox": server}})
}

// vscodeServers writes what VS Code reads, which asks for the key once and stores it encrypted.
func vscodeServers(server mcpServer) (string, error) {
	config := map[string]any{"servers": map[string]mcpServer{"sandbox": server}}
	if len(server.Headers)+len(server.Env) > 0 {
		config["inputs"] = []map[string]any{{"type": "promptString", "id": "sandbox-key",
			"description": "API key of the sandbox service", "password": true}}
	}
	return indented(config)
}

// codexServers writes TOML. Codex takes variables of its environment by their names alone.
func codexServers(server mcpServer) (string, error) {
	var out strings.Builder
	out.WriteString("[mcp_servers.sandbox]\n")
	add := func(key string, value any) error {
		text, err := compact(value) // strings and arrays of JSON are such of TOML
		fmt.Fprintf(&out, "%s = %s\n", key, text)
		return err
	}
	if server.URL != "" {
		err := add("url", server.URL)
		for name, variable := range server.Headers {
			fmt.Fprintf(&out, "env_http_headers = { %q = %q }\n", name, variable)
		}
		return out.String(), err
	}
	if err := add("command", server.Command); err != nil {
		return "", err
	}
	err := add("args", server.Args)
	if err == nil && len(server.Env) > 0 {
		err = add("env_vars", slices.Sorted(maps.Keys(server.Env)))
	}
	return out.String(), err
}

func indented(value any) (string, error) { return jsonText(value, "  ") }

func compact(value any) (string, error) {
	text, err := jsonText(value, "")
	return strings.TrimSuffix(text, "\n"), err
}

// jsonText is JSON in which URLs are as they are.
func jsonText(value any, indent string) (string, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	return out.String(), err
}
