package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/server/lifecycle"
)

// Webhook is one entry of [[webhooks]]: a receiver of the service's events, see docs/lifecycle.md.
type Webhook struct {
	// URL is the address that events are sent to, as POST: https, or with allow_private also http,
	// without a user and a fragment. The pair of url and events is unique.
	URL string `toml:"url"`
	// Events are the types of the events that are sent: state, stage, progress, renewed, metadata,
	// networkPolicy, lifecycle, snapshot and forgotten. Empty: all.
	Events []lifecycle.EventType `toml:"events"`
	// Secret is the secret of the signatures: whsec_ and the base64 of 24 to 64 random bytes. It or
	// secret_file is required.
	Secret string `toml:"secret"`
	// SecretFile is the absolute path of a file that holds the secret instead; white space around
	// it is dropped.
	//
	// [Load] reads the file into Secret.
	SecretFile string `toml:"secret_file"`
	// PreviousSecret is a second secret of the same form, which signs too: receivers accept either
	// signature while they change to the new secret.
	PreviousSecret string `toml:"previous_secret"`
	// PreviousSecretFile is the absolute path of a file that holds the second secret instead.
	//
	// [Load] reads the file into PreviousSecret.
	PreviousSecretFile string `toml:"previous_secret_file"`
	// AllowPrivate is whether the receiver may have an address that is loopback, private,
	// link-local or of this machine.
	AllowPrivate bool `toml:"allow_private"`
}

// The form of a secret, as Standard Webhooks has it.
const (
	secretPrefix                   = "whsec_"
	minSecretBytes, maxSecretBytes = 24, 64
)

// Key returns the bytes that sign.
func (w Webhook) Key() ([]byte, error) { return decodeSecret(w.Secret) }

// PreviousKey returns the bytes that sign too, nil without a second secret.
func (w Webhook) PreviousKey() ([]byte, error) {
	if w.PreviousSecret == "" {
		return nil, nil
	}
	return decodeSecret(w.PreviousSecret)
}

func decodeSecret(secret string) ([]byte, error) {
	encoded, prefixed := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !prefixed || err != nil || len(key) < minSecretBytes || len(key) > maxSecretBytes {
		// Neither the value nor the decoder's error, which says where in it the fault is.
		return nil, fmt.Errorf("must be %s and the base64 of %d to %d bytes: echo %[1]s$(openssl rand -base64 32)",
			secretPrefix, minSecretBytes, maxSecretBytes)
	}
	return key, nil
}

func webhookKey(i int) string { return element("webhooks", i) }

// webhookSecret is one of the secrets of a webhook: the key of its value, and of the file that may
// hold it.
type webhookSecret struct {
	key   string
	value *string
	file  string
}

// secrets returns the secret and the previous one.
func (w *Webhook) secrets(at string) (current, previous webhookSecret) {
	return webhookSecret{at + ".secret", &w.Secret, w.SecretFile}, webhookSecret{at + ".previous_secret", &w.PreviousSecret, w.PreviousSecretFile}
}

// readSecrets takes the secrets from their files.
func (w *Webhook) readSecrets(p *problems, at string) {
	current, previous := w.secrets(at)
	current.read(p)
	previous.read(p)
}

func (s webhookSecret) read(p *problems) {
	if s.file == "" {
		return
	}
	key := s.key + "_file"
	if *s.value != "" {
		p.add(key, "cannot be set together with %s: leave one of them out", s.key)
		return
	}
	if !filepath.IsAbs(s.file) {
		p.add(key, "must be the absolute path of a file (got %q)", s.file)
		return
	}
	content, err := os.ReadFile(s.file)
	if err != nil {
		p.add(key, "%w", err)
		return
	}
	*s.value = strings.TrimSpace(string(content))
	if _, err := decodeSecret(*s.value); err != nil {
		p.add(key, "the content of %s %w", s.file, err)
	}
}

// check refuses a value that is no secret. The content of a file was checked when it was read.
func (s webhookSecret) check(p *problems) {
	if *s.value == maskedSecret {
		p.add(s.key, "is the mask that stands for the secret in printed settings: write the real secret")
	} else if _, err := decodeSecret(*s.value); err != nil && s.file == "" {
		p.add(s.key, "%w", err)
	}
}

func checkWebhooks(p *problems, webhooks []Webhook, runtime RuntimeType) {
	if len(webhooks) > 0 && runtime == RuntimeKubernetes {
		p.add("webhooks", "must be empty with the kubernetes runtime: each replica of the service "+
			"would deliver every event. Follow GET /v1/events instead")
	}
	seen := map[string]bool{}
	for i, w := range webhooks {
		at := webhookKey(i)
		if err := w.checkURL(); err != nil {
			p.add(at+".url", "%w", err)
		}
		for j, kind := range w.Events {
			checkOneOf(p, element(at+".events", j), kind, lifecycle.EventTypes()...)
			if slices.Contains(w.Events[:j], kind) {
				p.add(element(at+".events", j), "must be unique (%q is in the list twice)", string(kind))
			}
		}
		same := fmt.Sprintf("%q %q", w.URL, slices.Sorted(slices.Values(w.Events)))
		if w.URL != "" && seen[same] {
			p.add(at, "must differ from earlier webhooks in its url or its events")
		}
		seen[same] = true
		current, previous := w.secrets(at)
		if w.SecretFile == "" && w.Secret == "" {
			p.add(at+".secret", "must be set, or else %s.secret_file", at)
		} else {
			current.check(p)
		}
		if w.PreviousSecret != "" {
			previous.check(p)
		}
	}
}

// checkURL keeps the value out of its errors: it may hold a secret.
func (w Webhook) checkURL() error {
	if w.URL == "" {
		return errors.New("is required")
	}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", !isHostPort(u.Host), u.User != nil, u.Fragment != "":
		return errors.New("must be the URL of a receiver, without a user and a fragment, " +
			"such as https://hooks.example.com/sandbox")
	case u.Scheme == "http" && !w.AllowPrivate:
		return errors.New("must be an https URL: http needs allow_private = true in the same section")
	}
	return nil
}
