package cli_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"sandbox.internal/clients/cli"
)

// TestMCPConfig: the entry of each agent names the service, and never has the key.
func TestMCPConfig(t *testing.T) {
	t.Parallel()
	const key = "a-key-that-is-not-printed"
	url, _ := keyed(t, key)
	saved := filepath.Join(t.TempDir(), "contexts.json")
	if got := runWith(t.Context(), map[string]string{"SANDBOX_CONTEXTS": saved}, key+"\n",
		"login", url, "--name", "work"); got.code != 0 {
		t.Fatal(got.stderr)
	}
	fromLogin := map[string]string{"SANDBOX_CONTEXTS": saved}
	fromVariables := map[string]string{"SANDBOX_CONTEXTS": saved + ".none", "SANDBOX_URL": url,
		"SERVICE_API_KEY": key}
	open := map[string]string{"SANDBOX_CONTEXTS": saved + ".none", "SANDBOX_URL": url}
	for name, test := range map[string]struct {
		env  map[string]string
		args string
		want []string
		none string // text that must not be there
	}{
		"claude":       {fromVariables, "claude", []string{url + "/mcp", `"SERVICE-API-KEY": "${SERVICE_API_KEY}"`}, "stdio"},
		"cursor":       {fromVariables, "cursor", []string{url + "/mcp", `"${env:SERVICE_API_KEY}"`}, "stdio"},
		"vscode":       {fromVariables, "vscode", []string{url + "/mcp", `"${input:sandbox-key}"`, `"password": true`}, "mcpServers"},
		"codex":        {fromVariables, "codex", []string{`url = "` + url + `/mcp"`, `env_http_headers = { "SERVICE-API-KEY" = "SERVICE_API_KEY" }`}, "${"},
		"claude stdio": {fromVariables, "claude --transport stdio", []string{`"--url"`, url, `"SERVICE_API_KEY": "${SERVICE_API_KEY}"`}, "http\""},
		"codex stdio":  {fromVariables, "codex --transport stdio", []string{`args = ["mcp","--url","` + url + `"]`, `env_vars = ["SERVICE_API_KEY"]`}, "${"},
		"saved":        {fromLogin, "cursor", []string{`"command": "sandbox"`, `"--context"`, `"work"`}, "SERVICE"},
		"saved codex":  {fromLogin, "codex", []string{`args = ["mcp","--context","work"]`}, "env_vars"},
		"saved http":   {fromLogin, "claude --transport http", []string{url + "/mcp", `"${SERVICE_API_KEY}"`}, "stdio"},
		"without key":  {open, "vscode", []string{url + "/mcp"}, "inputs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t.Context(), test.env, append([]string{"mcp", "config", "--for"},
				strings.Fields(test.args)...)...)
			if got.code != 0 || strings.Contains(got.stdout+got.stderr, key) ||
				strings.Contains(got.stdout, test.none) {
				t.Fatalf("code %d, %s%s", got.code, got.stderr, got.stdout)
			}
			for _, want := range test.want {
				if !strings.Contains(got.stdout, want) {
					t.Errorf("%q is not in %s", want, got.stdout)
				}
			}
			decode := json.Unmarshal
			if strings.HasPrefix(test.args, "codex") {
				decode = toml.Unmarshal
			}
			var config map[string]any
			if err := decode([]byte(got.stdout), &config); err != nil || len(config) == 0 {
				t.Errorf("%v: %s", err, got.stdout)
			}
		})
	}
	for _, args := range [][]string{{}, {"--for", "emacs"}, {"--for", "claude", "--transport", "tcp"}} {
		got := run(t.Context(), open, append([]string{"mcp", "config"}, args...)...)
		if got.code != cli.ExitUsage || got.stdout != "" {
			t.Errorf("%v: code %d, %s", args, got.code, got.stdout)
		}
	}
}
