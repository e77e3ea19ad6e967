package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
	"sandbox.internal/server/lifecycle"
)

// whsec is a secret of 32 bytes, and whsecBase64 what follows its prefix.
const (
	whsecBase64 = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	whsec       = "whsec_" + whsecBase64
)

func TestWebhooks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("\n"+whsec+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := load(t, minimal+`[[webhooks]]
url = "https://hooks.example.com:8443/a?b=c"
events = []
secret = "`+whsec+`"
[[webhooks]]
url = "http://127.0.0.1:9000"
events = ["state", "networkPolicy"]
secret_file = "`+file+`"
previous_secret_file = "`+file+`"
allow_private = true
[[webhooks]]
url = "https://h.example"
events = []
secret_file = "`+file+`"
previous_secret = "`+whsec+`"
`, home)
	want := []config.Webhook{
		{URL: "https://hooks.example.com:8443/a?b=c", Events: []lifecycle.EventType{}, Secret: whsec},
		{URL: "http://127.0.0.1:9000", Events: []lifecycle.EventType{lifecycle.EventState, lifecycle.EventPolicy},
			Secret: whsec, SecretFile: file, PreviousSecret: whsec, PreviousSecretFile: file, AllowPrivate: true},
		{URL: "https://h.example", Events: []lifecycle.EventType{}, Secret: whsec, SecretFile: file, PreviousSecret: whsec},
	}
	if !reflect.DeepEqual(c.Webhooks, want) {
		t.Errorf("got %+v, want %+v", c.Webhooks, want)
	}
	if key, err := c.Webhooks[1].Key(); err != nil || string(key) != "0123456789abcdef0123456789abcdef" {
		t.Errorf("the key is %q, %v", key, err)
	}
	if key, err := c.Webhooks[0].PreviousKey(); err != nil || key != nil {
		t.Errorf("without a previous secret the key is %q, %v", key, err)
	}
	if key, err := c.Webhooks[2].PreviousKey(); err != nil || string(key) != "0123456789abcdef0123456789abcdef" {
		t.Errorf("the previous key is %q, %v", key, err)
	}
	if !slices.Contains(c.OwnPaths(), file) {
		t.Error("the file of the secret is no path of the service's own")
	}

	var out bytes.Buffer
	if err := config.Print(&out, c); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), whsecBase64) {
		t.Errorf("a secret is in\n%s", out.String())
	}
	if c.Webhooks[0].Secret != whsec {
		t.Error("Print has changed what it prints")
	}
	if _, err := config.Load(write(t, out.String()), home); err == nil || !strings.Contains(err.Error(), "webhooks[0].secret: is the mask") {
		t.Errorf("the mask loads: %v", err)
	}
	if got := load(t, strings.ReplaceAll(out.String(), "********", whsec), home); !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v, want %+v", got, c)
	}
}

func TestWebhookProblems(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(bad, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	const form = "must be whsec_ and the base64 of 24 to 64 bytes: echo whsec_$(openssl rand -base64 32)"
	url, secret := `url = "https://h.example"`+"\n", `secret = "`+whsec+`"`+"\n"
	entry := func(lines string) string { return "[[webhooks]]\n" + lines }
	for name, tt := range map[string]struct{ text, want string }{
		"no url":             {entry(secret), "webhooks[0].url: is required"},
		"url, path":          {entry(secret + `url = "/hook"`), "webhooks[0].url: must be the URL of a receiver"},
		"url, scheme":        {entry(secret + `url = "ftp://h.example"`), "webhooks[0].url: must be the URL of a receiver"},
		"url, password":      {entry(secret + `url = "https://u:hunter2@h.example"`), "webhooks[0].url: must be the URL of a receiver"},
		"url, fragment":      {entry(secret + `url = "https://h.example/#hunter2"`), "webhooks[0].url: must be the URL of a receiver"},
		"url, control":       {entry(secret + `url = "https://h.example/\u0001hunter2"`), "webhooks[0].url: must be the URL of a receiver"},
		"http":               {entry(secret + `url = "http://h.example"`), "webhooks[0].url: must be an https URL: http needs allow_private = true"},
		"event":              {entry(url + secret + `events = ["state", "ping"]`), `webhooks[0].events[1]: must be state, stage, progress, renewed, metadata, networkPolicy, lifecycle, snapshot or forgotten (got "ping")`},
		"event, twice":       {entry(url + secret + `events = ["state", "state"]`), `webhooks[0].events[1]: must be unique ("state" is in the list twice)`},
		"no secret":          {entry(url), "webhooks[0].secret: must be set, or else webhooks[0].secret_file"},
		"secret, prefix":     {entry(url + `secret = "` + whsecBase64 + `"`), "webhooks[0].secret: " + form},
		"secret, base64":     {entry(url + `secret = "whsec_hunter2"`), "webhooks[0].secret: " + form},
		"secret, short":      {entry(url + `secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY="`), "webhooks[0].secret: " + form},
		"secret, long":       {entry(url + `secret = "whsec_` + strings.Repeat("MDEy", 22) + `"`), "webhooks[0].secret: " + form},
		"two secrets":        {entry(url + secret + `secret_file = "/x"`), "webhooks[0].secret_file: cannot be set together with webhooks[0].secret"},
		"relative file":      {entry(url + `secret_file = "x"`), "webhooks[0].secret_file: must be the absolute path of a file"},
		"missing file":       {entry(url + `secret_file = "/nonexistent/x"`), "webhooks[0].secret_file: open /nonexistent/x"},
		"bad file":           {entry(url + `secret_file = "` + bad + `"`), "webhooks[0].secret_file: the content of " + bad + " " + form},
		"previous":           {entry(url + secret + `previous_secret = "whsec_hunter2"`), "webhooks[0].previous_secret: " + form},
		"previous, two":      {entry(url + secret + `previous_secret_file = "/x"` + "\n" + `previous_secret = "` + whsec + `"`), "webhooks[0].previous_secret_file: cannot be set together with webhooks[0].previous_secret"},
		"previous, bad file": {entry(url + secret + `previous_secret_file = "` + bad + `"`), "webhooks[0].previous_secret_file: the content of " + bad + " " + form},
		"previous, mask":     {entry(url + secret + `previous_secret = "********"`), "webhooks[0].previous_secret: is the mask"},
		"previous alone":     {entry(url + `previous_secret = "` + whsec + `"`), "webhooks[0].secret: must be set"},
		"twice": {entry(url+secret+`events = ["state", "stage"]`) + "\n" + entry(url+secret+`events = ["stage", "state"]`),
			"webhooks[1]: must differ from earlier webhooks in its url or its events"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(write(t, minimal+tt.text), home)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want %s", err, tt.want)
			}
			for _, part := range []string{"hunter2", whsecBase64} {
				if strings.Contains(err.Error(), part) {
					t.Errorf("the error has a secret: %v", err)
				}
			}
		})
	}
	_, err := config.Load(write(t, strings.Replace(minimal, `"docker"`, `"kubernetes"`, 1)+entry(url+secret)), home)
	if err == nil || !strings.Contains(err.Error(), "webhooks: must be empty with the kubernetes runtime: each replica") {
		t.Errorf("on Kubernetes: %v", err)
	}
}
