package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

func TestDebugAddressIsLoopbackOnly(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "127.0.0.1:6060": true, "127.1.2.3:0": true, "[::1]:6060": true,
		"localhost:6060": true,
		"0.0.0.0:6060":   false, ":6060": false, "[::]:6060": false, "192.0.2.1:6060": false,
		"example.com:6060": false,
		"127.0.0.1":        false, "127.0.0.1:": false, "127.0.0.1:65536": false,
		"127.0.0.1:http": false,
		"6060":           false,
	} {
		c := valid()
		c.Server.DebugAddress = address
		err := c.Validate()
		if ok != (err == nil) || err != nil &&
			!strings.Contains(err.Error(), "server.debug_address: must be a loopback address") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestAuditLogIsAnAbsolutePath(t *testing.T) {
	for path, ok := range map[string]bool{"": true, "/var/log/audit.log": true, "audit.log": false,
		"~/audit.log": false, "/var/log/": false} {
		c := valid()
		c.Server.AuditLog = path
		err := c.Validate()
		if ok != (err == nil) || err != nil &&
			!strings.Contains(err.Error(), "server.audit_log: must be the absolute path") {
			t.Errorf("%q: %v", path, err)
		}
	}
	c := load(t, minimal+"[server]\naudit_log = \"~/audit.log\"\n", home)
	if c.Server.AuditLog != home("HOME")+"/audit.log" {
		t.Errorf("~/audit.log is %q", c.Server.AuditLog)
	}
}

func TestSigningKeyIsAnAbsolutePath(t *testing.T) {
	for path, ok := range map[string]bool{"": true, "/etc/signing.key": true, "signing.key": false,
		"/etc/": false} {
		c := valid()
		c.Server.SigningKey = path
		err := c.Validate()
		if ok != (err == nil) || err != nil &&
			!strings.Contains(err.Error(), "server.signing_key: must be the absolute path") {
			t.Errorf("%q: %v", path, err)
		}
	}
	c := load(t, minimal+"[server]\nsigning_key = \"~/signing.key\"\n", home)
	if c.Server.SigningKey != home("HOME")+"/signing.key" {
		t.Errorf("~/signing.key is %q", c.Server.SigningKey)
	}
}

// valid returns a configuration that breaks no rule.
func valid() config.Config {
	c := config.Default(home)
	c.Runtime = config.Runtime{Type: config.RuntimeDocker, ExecdImage: "e"}
	return c
}

func TestAPIKeyFromAFile(t *testing.T) {
	directory := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const key = "0123456789abcdef0123456789abcdef"
	good := write("api.key", key+"\n")
	c := load(t, minimal+"[server]\napi_key_file = \""+good+"\"\n", home)
	if c.Server.APIKey != key {
		t.Errorf("the key is %q", c.Server.APIKey)
	}

	// What is printed holds the path and not the key, and can be loaded again.
	var printed bytes.Buffer
	if err := config.Print(&printed, c); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(printed.String(), key) || strings.Contains(printed.String(), "not shown") {
		t.Errorf("printed:\n%s", printed.String())
	}
	if again := load(t, printed.String(), home); again.Server.APIKey != key {
		t.Errorf("the key loaded again is %q", again.Server.APIKey)
	}

	for name, test := range map[string]struct{ settings, want string }{
		"not there": {`api_key_file = "/nowhere/api.key"`,
			"sandbox.toml:5: server.api_key_file: open /nowhere/api.key: no such file"},
		"empty": {`api_key_file = "` + write("empty", " \n") + `"`,
			"sandbox.toml:5: server.api_key_file: is an empty file"},
		"relative": {`api_key_file = "api.key"`,
			"sandbox.toml:5: server.api_key_file: must be the absolute path"},
		"both": {`api_key_file = "` + good + `"` + "\napi_key = \"x\"",
			"sandbox.toml:5: server.api_key_file: cannot be set together with server.api_key"},
		"two words": {`api_key_file = "` + write("words", "a key") + `"`,
			"server.api_key: must be visible ASCII characters"},
	} {
		_, err := config.Load(write("sandbox.toml", minimal+"[server]\n"+test.settings+"\n"), home)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}
