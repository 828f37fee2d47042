"""Every measured claim of Forerun: runners, and the reports they wrote."""
