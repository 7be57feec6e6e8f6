"""The Streamlit console. Pages draw what `palomar.app.service` returns; none computes a statistic."""
