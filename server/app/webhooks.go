package app

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"sandbox.internal/server/api"
	"sandbox.internal/server/config"
	"sandbox.internal/server/metrics"
	"sandbox.internal/server/webhooks"
)

// openWebhooks prepares what delivers events; [App.Run] starts it.
func (a *App) openWebhooks(ctx context.Context, cfg config.Config, measured *metrics.Metrics) error {
	if cfg.Runtime.Type == config.RuntimeKubernetes {
		return nil // refused by the rules of the configuration
	}
	o := webhooks.Options{
		Feed: a.backend, Directory: filepath.Join(cfg.Server.DataDir, "webhooks"), Body: api.EventBody,
		Logger: a.logger, Observer: measured, Clock: time.Now,
	}
	for i, w := range cfg.Webhooks {
		name := fmt.Sprintf("webhooks[%d]", i)
		key, err := w.Key()
		if err != nil {
			return fmt.Errorf("%s.secret: %w", name, err)
		}
		previous, err := w.PreviousKey()
		if err != nil {
			return fmt.Errorf("%s.previous_secret: %w", name, err)
		}
		o.Webhooks = append(o.Webhooks, webhooks.Webhook{
			Name: name, URL: w.URL, Events: w.Events, Key: key, PreviousKey: previous, AllowPrivate: w.AllowPrivate,
		})
	}
	var err error
	if a.webhooks, err = webhooks.Open(ctx, o); err != nil {
		return err
	}
	measured.Webhooks(a.webhooks.Oldest)
	return nil
}
