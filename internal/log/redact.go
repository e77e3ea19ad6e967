package log

import (
	"bytes"
	"io"
	"net/url"
	"strconv"
	"strings"
)

// minSecret is the length from which a secret is kept out of the log. A shorter one is part of too
// many words.
const minSecret = 4

// redacted stands in the log where a secret was.
const redacted = "[redacted]"

// withoutSecrets returns a writer of log lines that keeps the secrets out of them. Nothing of ours
// logs a token, but clients put them where they do not belong: into a path, a request id, the name
// of a command.
func withoutSecrets(out io.Writer, secrets []string) io.Writer {
	var forms [][]byte
	for _, secret := range secrets {
		if len(secret) < minSecret {
			continue
		}
		inJSON := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), strconv.Quote(secret)[1 : len(strconv.Quote(secret))-1]} {
			forms = append(forms, []byte(inJSON.Replace(form)))
		}
	}
	if len(forms) == 0 {
		return out
	}
	return redactor{out, forms}
}

type redactor struct {
	out   io.Writer
	forms [][]byte
}

// Write takes one line, as zerolog writes them.
func (r redactor) Write(line []byte) (int, error) {
	clean := line
	for _, form := range r.forms {
		if bytes.Contains(clean, form) {
			clean = bytes.ReplaceAll(clean, form, []byte(redacted))
		}
	}
	if _, err := r.out.Write(clean); err != nil {
		return 0, err
	}
	return len(line), nil
}
